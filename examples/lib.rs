//! Examples of lock-core and its companions; each is a program of its own, see `README.md`.
