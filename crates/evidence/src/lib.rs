//! What could refute the project's promises, where a test of one crate would see too little.
//!
//! The [`model`]: the protocol in every order of events. The [`sim`]ulation: whole clients and fenced writers in a world that
//! goes wrong in every way at once, all of it decided by one seed. A crate of its own, so that the core's tests need neither,
//! and so that what runs long is built once, as a library, for the tests and for the tasks.

pub mod model;
pub mod sim;
