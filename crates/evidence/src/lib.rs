//! What could refute the project's promises, where a test of one crate would see too little.
//!
//! So far the [`model`]: the protocol in every order of events. A crate of its own, so that the core's tests need no model
//! checker, and so that what runs long is built once, as a library, for the tests and for `cargo xtask model`.

pub mod model;
