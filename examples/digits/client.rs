//! Calls every route of http://127.0.0.1:8000 once, or of the server that its first argument names.
//!
//! ```toml
//! [dependencies]
//! callboard = "0.1.0"
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```

use std::error::Error;
use std::io::{self, Write};

use callboard::http_client::{Call, Connection, Origin, Protocol};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    let origin: Origin = url.as_deref().unwrap_or("http://127.0.0.1:8000").parse()?;

    // /digits: Tells which digit a picture shows
    call(&origin, "/digits", "image/png", std::fs::read("examples/digits/seven.png")?).await?;
    Ok(())
}

/// Sends one request and writes its answer as it comes.
async fn call(origin: &Origin, route: &str, media_type: &str, body: Vec<u8>) -> Result<(), Box<dyn Error>> {
    let request = Call::post(route, media_type, body).prepare(origin, Protocol::Http1)?;
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
