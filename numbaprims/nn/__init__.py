"""Networks and their training, built on the public functions of the package and on nothing below them."""
