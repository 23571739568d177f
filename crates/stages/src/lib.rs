//! callboard-stages.
