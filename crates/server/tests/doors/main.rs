//! A node with all doors, and what each of them does: with calls that fail, and in trouble.

#![cfg(feature = "http")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod door;
mod kinds;
mod models;
mod send;
mod streams;
mod trouble;
