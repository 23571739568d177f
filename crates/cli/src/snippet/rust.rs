//! A program with `callboard::http_client`.

use std::fmt::Write as _;

use super::{Body, Example, KEY_VARIABLE, NOTHING};

const HEAD: &str = r#"//! Calls every route of BASE once, or of the server that its first argument names.
//!
//! ```toml
//! [dependencies]
//! callboard = "VERSION"
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```

use std::error::Error;
use std::io::{self, Write};

use callboard::http_client::{Call, Connection, Origin, Protocol};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    let origin: Origin = url.as_deref().unwrap_or("BASE").parse()?;
"#;

const TAIL: &str = r#"    Ok(())
}

/// Sends one request and writes its answer as it comes.
async fn call(origin: &Origin, route: &str, media_type: &str, body: Vec<u8>) -> Result<(), Box<dyn Error>> {
PREPARED
    let mut connection = Connection::open(origin, Protocol::Http1).await?;
    let mut answer = connection.send(&request).await?;
    let mut stdout = io::stdout();
    while let Some(chunk) = answer.chunk().await? {
        stdout.write_all(&chunk)?;
    }
    writeln!(stdout)?;
    match answer.status() {
        200..=299 => Ok(()),
        status => Err(format!("{route} answered {status}").into()),
    }
}
"#;

const PREPARED: &str = "    let request = Call::post(route, media_type, body).prepare(origin, Protocol::Http1)?;";

const PREPARED_WITH_KEY: &str = r#"    let mut call = Call::post(route, media_type, body);
    call.headers.push(("x-api-key".to_owned(), std::env::var("KEY")?));
    let request = call.prepare(origin, Protocol::Http1)?;"#;

/// One `main` with a call for each route.
pub(super) fn program(examples: &[Example], base: &str, needs_key: bool) -> String {
    let mut program = HEAD.replace("VERSION", env!("CARGO_PKG_VERSION")).replace("BASE", base);
    for example in examples {
        // Writing to a string cannot fail.
        let _ = write!(program, "\n{}", called(example));
    }
    let prepared = if needs_key { PREPARED_WITH_KEY.replace("KEY", KEY_VARIABLE) } else { PREPARED.to_owned() };
    program.push_str(&TAIL.replace("PREPARED", &prepared));
    program
}

fn called(example: &Example) -> String {
    let (media_type, body) = match &example.body {
        Body::Nothing => return format!("    // {} {NOTHING}\n", example.route),
        Body::Json(json) => ("application/json", format!("{}.into()", raw(&json.to_string()))),
        Body::File { path, media_type, .. } => (media_type.as_str(), format!("std::fs::read({})?", literal(path))),
    };
    let route = literal(&example.route);
    format!("    // {}\n    call(&origin, {route}, {}, {body}).await?;\n", example.title(), literal(media_type))
}

/// A string literal with escapes.
fn literal(text: &str) -> String {
    format!("{text:?}")
}

/// A raw string literal, between as many `#` as it needs.
fn raw(text: &str) -> String {
    let mut hashes = String::from("#");
    while text.contains(&format!("\"{hashes}")) {
        hashes.push('#');
    }
    format!("r{hashes}\"{text}\"{hashes}")
}
