#!/bin/sh
# The tests on ARM64, by emulation in user mode; --help says how.
set -eu

usage() {
    echo "usage: sudo tools/test_on_arm64.sh [--root DIR] [--suite NAME] [--all | -- PYTEST ARGUMENTS]

Runs tests on Linux ARM64 in emulation: makes a root directory of that machine, with Python, the packages
that pip install .[test] brings and this checkout as it is, and calls pytest in it.
Without arguments: the simd, target and demo tests, in about eight minutes.

  --root DIR    keep the root and its compiled kernels in DIR, or go on with those that are there
                (without it, a temporary directory of 1 GB that is removed)
  --suite NAME  the release of Debian or Ubuntu to take (this machine's)
  --all         the whole suite but tests/gpu, one process a file, for hours. Files that passed are listed in
                DIR/passed-*, one for each state of the checkout: an interrupted run goes on where it stopped
  -- ...        these arguments of pytest in place of the simd, target and demo tests

Needs Debian or Ubuntu, root (to mount in a namespace of its own, and to change the root) and
  apt-get install qemu-user-static debootstrap
PYTHON names the host's Python whose pip is used (python3). binfmt_misc may be there or not."
}

refuse() {
    echo "test_on_arm64: $1" >&2
    exit 2
}

work='' suite='' all=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit ;;
        --root | --suite)
            [ $# -ge 2 ] || refuse "$1 needs a value"
            if [ "$1" = --root ]; then work=$2; else suite=$2; fi
            shift
            ;;
        --all) all=yes ;;
        --) break ;;
        *) refuse "unknown argument $1; see --help" ;;
    esac
    shift
done
if [ $# -gt 0 ]; then
    shift
    [ -z "$all" ] || refuse "--all takes no arguments of pytest"
fi
[ "$(id -u)" = 0 ] || refuse "needs root"
for tool in qemu-aarch64-static debootstrap dpkg-deb git unshare; do
    command -v $tool > /dev/null || refuse "needs $tool: apt-get install qemu-user-static debootstrap git"
done

checkout=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
if [ -n "$work" ]; then
    mkdir -p "$work"
    work=$(cd "$work" && pwd)
else
    work=$(mktemp -d)
    # What is mounted below is mounted for the commands in there only: never within reach of this.
    trap 'rm -rf --one-file-system "$work"' EXIT
    trap 'exit 130' INT TERM
fi
root="$work/root"

if [ ! -e "$work/unpacked" ]; then
    rm -rf --one-file-system "$root" "$work/installed"
    # shellcheck disable=SC1091
    [ -n "$suite" ] || suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    debootstrap --arch=arm64 --variant=minbase --foreign --include=python3,libgomp1 "$suite" "$root"
    # In a container debootstrap leaves a link to /proc there, which within the root is a link to itself.
    if [ -L "$root/proc" ]; then
        rm "$root/proc"
        mkdir "$root/proc"
    fi
    # Unpacked, not installed: the second stage would run hundreds of maintainer scripts in emulation.
    for package in "$root"/var/cache/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
    done
    cp "$(command -v qemu-aarch64-static)" "$root/usr/bin/qemu-aarch64-static"
    real=$(readlink "$root/usr/bin/python3")
    # Where binfmt_misc is missing, the kernel starts no program of the root: not what tests start by sys.executable. It
    # does start a script whose interpreter is the emulator; -0 lets Python take the script for itself.
    for pair in "python3 $real" 'sh dash'; do
        name=${pair% *}
        rm "$root/usr/bin/$name"
        cat > "$root/usr/bin/$name" <<EOF
#!/usr/bin/qemu-aarch64-static /usr/bin/dash
exec /usr/bin/qemu-aarch64-static -0 /usr/bin/$name /usr/bin/${pair#* } "\$@"
EOF
        chmod +x "$root/usr/bin/$name"
    done
    echo "$real" > "$work/unpacked"
fi

real=$(cat "$work/unpacked")
packages="$root/usr/local/lib/$real/dist-packages"
if ! cmp -s "$checkout/pyproject.toml" "$work/installed"; then
    rm -rf "$packages"
    "${PYTHON:-python3}" -m pip install --quiet --only-binary=:all: --implementation cp \
        --python-version "${real#python}" --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
        --platform manylinux2014_aarch64 --target "$packages" "${checkout}[test]"
    # The package's metadata stay, for its entry points; its code is the checkout's.
    rm -rf "$packages/numbaprims"
    echo /checkout > "$packages/checkout.pth"
    cp "$checkout/pyproject.toml" "$work/installed"
fi

rm -rf "$root/checkout"
mkdir "$root/checkout"
cd "$checkout"
git ls-files -z --cached --others --exclude-standard |
    tar -c --null --ignore-failed-read -T - | tar -x -C "$root/checkout"
cd "$root/checkout"

pytest_in_root() {
    # The single quotes: these lines run in another shell, the second one in the root.
    # shellcheck disable=SC2016
    unshare --mount sh -euc '
        mount -t proc proc "$1/proc"
        mount --rbind /sys "$1/sys"
        mount --rbind /dev "$1/dev"
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 NUMBAPRIMS_TEST_CACHE_DIR=/kernels \
            NUMBAPRIMS_TEST_EMULATED=1 chroot "$1" /usr/bin/sh -c \
            "cd /checkout && shift && exec python3 -m pytest -n 0 \"\$@\"" sh "$@"' sh "$root" "$@"
}

if [ -z "$all" ]; then
    [ $# -gt 0 ] || set -- tests/cpu/test_simd*.py tests/cpu/test_target.py tests/test_demo.py
    pytest_in_root "$@"
    exit
fi
state=$(tar -c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner . | sha256sum | cut -c 1-12)
passed="$work/passed-$state" failed=''
touch "$passed"
for file in $(find tests -name 'test_*.py' ! -path 'tests/gpu/*' | sort); do
    if grep -qxF "$file" "$passed"; then continue; fi
    status=0
    pytest_in_root -q "$file" || status=$?
    case $status in
        0 | 5) echo "$file" >> "$passed" ;; # 5: no test was collected
        *) failed="$failed $file" ;;
    esac
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
