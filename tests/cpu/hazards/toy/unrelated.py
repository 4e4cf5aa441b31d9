"""Imported by nobody."""
