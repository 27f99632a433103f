//! The command as its users run it: the real program, real servers, real processes.
//!
//! One binary, so that the program and the bench are linked once.

mod support;

mod connections;
mod doctor;
mod doctor_database;
mod enroll;
mod fence_sql;
mod force_release;
mod looks;
mod page;
mod run_codes;
mod run_loss;
mod run_signals;
mod run_streams;
mod run_terminal;
mod scripts;
mod top;
