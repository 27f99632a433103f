//! The fence on real databases. One binary, so that it is linked once.
//!
//! Tests that hold on every database are written once, as functions over [`support::TestDb`], and named by
//! `on_every_database!`, which adds `_postgres`, `_mariadb` and `_sqlite`. Each has a database of its own. A missing server
//! is a failure that says how to get it.

#![cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]

mod clients;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod costs;
mod every_form;
mod forms;
mod guard_cascades;
mod guard_docs;
mod guard_install;
#[cfg(feature = "mysql")]
mod guard_mariadb;
#[cfg(feature = "postgres")]
mod guard_postgres;
mod guard_races;
#[cfg(feature = "sqlite")]
mod guard_sqlite;
mod guards;
mod histories;
mod histories_counters;
mod interleavings;
mod interrupted;
mod joined;
mod keys;
mod ledger;
mod many;
#[cfg(feature = "mysql")]
mod mariadb;
#[cfg(feature = "postgres")]
mod postgres;
mod rows;
#[cfg(feature = "sqlite")]
mod sqlite;
mod running;
mod support;
mod tokens;
