//! The code of the book's pages, as documentation tests: each page is the documentation of a module that is there for them
//! alone. `cargo xtask tidy` says which page is missing.
//!
//! The larger examples of the book are the programs in `examples/`; `tests/` runs them for what they claim.

macro_rules! pages {
    ($($name:ident $path:literal)*) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!($path)]
            mod $name {}
        )*
    };
}

pages! {
    quick_start_fenced "../../../docs/quick-start-fenced.md"
    custom_nodes "../../../docs/custom-nodes.md"
    choosing "../../../docs/choosing.md"
    holding "../../../docs/holding.md"
    operating "../../../docs/operating.md"
    fencing "../../../docs/fencing.md"
}
