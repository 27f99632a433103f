//! redlock-bench
