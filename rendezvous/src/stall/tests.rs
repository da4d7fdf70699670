//! Tests the explanation of stalls.

mod evidence;
mod fixture;
mod property;
mod sentences;
mod simulator;
