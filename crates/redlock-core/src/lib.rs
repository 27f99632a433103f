//! A quorum lock over independent nodes whose grants carry a fencing token.
pub mod resource;
pub mod token;
pub use resource::*;
pub use token::*;
