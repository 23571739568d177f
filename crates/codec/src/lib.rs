//! callboard-codec.
