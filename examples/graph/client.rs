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

    // /both: Tells which digit a picture shows, how sure that is, and why
    call(&origin, "/both", "image/png", std::fs::read("examples/digits/seven.png")?).await?;

    // /either: Takes a picture, or its pixels
    call(&origin, "/either", "image/png", std::fs::read("examples/digits/seven.png")?).await?;

    // /choose: Tells as much about a picture as is wanted
    call(&origin, "/choose", "image/png", std::fs::read("examples/digits/seven.png")?).await?;

    // /strict: The same, for those who say what they want
    call(&origin, "/strict", "application/json", r#"{"picture":"iVBORw0KGgoAAAANSUhEUgAAAFAAAABQCAAAAACreq1xAAAAmklEQVR42u2XwQ1AYAxGf2IAG7ABIxiBUWxiBDYwghGsYAJs4PZJpPlPDqKvp5ce3qHNl6ZJMKoRDaIqxGoSpeHlQojwC8LEas5GZlZRbqSnYykIHSYlXovoELUsBeG/hZnVzKNZqA1iKQg9JmU1klJG/5mRpSB0fVMK0WmkYmGGCF3/KXdSdlEvGpghQm7K4yfZRDMzROhZeAGKDhFmtZrYAwAAAABJRU5ErkJggg==","want":"all"}"#.into()).await?;
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
