//! Deliberate bugs, to measure the tests by: does anything fail if one of them is there?
//!
//! Each stands where it would be made, behind `mutant!` and its name. In a build with `--cfg redlock_mutants`, which only
//! `cargo xtask mutants` makes, the environment variable `REDLOCK_MUTANT` switches on one of them; in every other build there
//! is no such switch: `mutant!` is `false`, or the right one of its two expressions. The page `docs/mutants.md` says what catches which.

#[cfg(not(redlock_mutants))]
macro_rules! mutant {
    ($name:literal) => {
        false
    };
    ($name:literal, $right:expr, $wrong:expr) => {
        $right
    };
}

#[cfg(redlock_mutants)]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutants::is_on($name)
    };
    ($name:literal, $right:expr, $wrong:expr) => {
        if $crate::mutants::is_on($name) { $wrong } else { $right }
    };
}

#[cfg(redlock_mutants)]
pub(crate) fn is_on(name: &str) -> bool {
    static ON: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ON.get_or_init(|| std::env::var("REDLOCK_MUTANT").ok()).as_deref() == Some(name)
}
