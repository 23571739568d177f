//! callboard-http.
