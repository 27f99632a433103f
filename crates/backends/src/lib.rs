//! redlock-backends
