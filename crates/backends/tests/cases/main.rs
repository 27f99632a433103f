//! Faults that users of other lock libraries met, each as a test on five real Redis servers.
//!
//! The number in a test's name is that of the case in the documentation's page on testing.

mod support;

mod b01_short_lease;
mod b03_validity_origin;
mod b05_wall_clock;
mod b07_dead_node;
mod b09_frozen_node;
mod b11_error_classes;
mod b13_same_server;
mod b17_cancelled;
mod b19_already_gone;
mod b21_drop_anywhere;
mod b23_not_owner;
mod b25_no_revival;
mod b27_watchdog_survives;
mod b29_bounded_renewal;
mod b31_extend_sets;
mod b33_script_flush;
mod b35_foreign_key;
mod b37_many_resources;
mod b39_reconnect;
mod b41_connections;
mod b43_wake_up;
mod b45_wait;
mod b47_stale_grant;
mod b49_twice;
mod b53_counters_apart;
mod b55_token_remembered;
