//! fence-store
