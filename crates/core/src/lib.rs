//! callboard-core.
