//! The fence on real databases. One binary, so that it is linked once.
//!
//! Tests that hold on every database are written once, as functions over [`support::TestDb`], and named by
//! `on_every_database!`, which adds `_postgres`, `_mariadb` and `_sqlite`. Each has a database of its own. A missing server
//! is a failure that says how to get it.

#![cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]

mod interleavings;
mod interrupted;
mod ledger;
#[cfg(feature = "mysql")]
mod mariadb;
#[cfg(feature = "postgres")]
mod postgres;
mod rows;
#[cfg(feature = "sqlite")]
mod sqlite;
mod support;
mod tokens;
