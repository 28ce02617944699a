"""The package as others get it: built, installed, imported, typed. Not named packaging: that is a library."""
