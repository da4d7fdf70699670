//! Tests the explanation of stalls.

mod evidence;
mod fixture;
mod places;
mod property;
mod sentences;
mod simulator;
