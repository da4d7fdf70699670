//! Decides which checkpoint in memory a round begins with, which one is whole, and which nodes keep copies.
//!
//! 1. When a round is formed, [`choose()`] finds the newest checkpoint of which connected nodes hold all parts.
//! 2. Each node gets a *buddy*, which keeps copies of its parts ([`buddies()`]).
//! 3. While the round runs, [`Holdings`] finds the newest checkpoint that is *whole*: each part is held by its
//!    own node and by one more.
//!
//! Nothing here has a clock or sends a message. The machine does both (`machine/memory.rs`).

mod buddies;
mod choose;
#[cfg(test)]
pub(crate) mod fixture;
mod holdings;
mod tried;

pub(crate) use self::{
    buddies::{Site, buddies},
    choose::{Chosen, Gone, Place, Source, choose},
    holdings::Holdings,
    tried::Tried,
};
