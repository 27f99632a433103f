//! What a hostile review refuted, each claim now held by a test, in virtual time.
//!
//! ```text
//!  validity    what a holder believes ends before what the nodes hold, whatever pauses, and whichever extension comes late
//!  attempts    no attempt is lost to the client's own doing: bursts, pauses, a second trip, nodes that are back
//!  leftovers   nothing stays on a node, whatever order it keeps, however often it is told, and however long it is away
//!  background  the client's task outlives a node that panics, and nobody waits for a task that is gone
//!  crowd       tokens and validities of many clients on bad networks, seed by seed
//! ```
//!
//! What takes real servers is in `refuted_redis`.

#[path = "../common/mod.rs"]
mod common;

mod attempts;
mod background;
mod crowd;
mod leftovers;
mod validity;
