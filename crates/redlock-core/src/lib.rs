//! A quorum lock over independent nodes whose grants carry a fencing token.
pub mod resource;
pub mod owner;
pub mod clock;
pub mod token;
pub mod node;
pub mod tally;
pub mod validity;
pub mod mint;
pub mod attempt;
pub use resource::*;
pub use token::*;
pub use node::*;
pub use owner::*;
pub use clock::*;
