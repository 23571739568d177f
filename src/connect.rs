//! A client of nodes somewhere else, by their address.

use callboard_net::{Client, ConnectError};

/// Connects to a node at `quic://host:port`, or to the first that answers of `quic://a:1,b:2`, with the development identity.
///
/// Waits 10 s for a node that is not there yet; [`net::Client::builder`](Client::builder) sets that, the identity and the limits.
/// What is connected is a [`Caller`](crate::Caller), as is the [`Client`](crate::Client) of a node in the same process.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let state = std::env::temp_dir().join(format!("callboard-connect-{}", std::process::id()));
/// # // SAFETY: no other thread has been started yet that reads the environment.
/// # unsafe { std::env::set_var("XDG_STATE_HOME", &state) };
/// use callboard::net::{Edge, Identity, NetConfig};
/// use callboard::prelude::*;
/// use callboard::Caller;
///
/// let edge = Edge::bind("127.0.0.1:0".parse()?, Identity::development()?, NetConfig::default())?;
/// let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
/// let node = App::new().route("/shout", shout).start().await?;
/// edge.open(node.client());
///
/// let client = callboard::connect(&format!("quic://{}", edge.address())).await?;
/// let loud: String = client.call("/shout", "ada".to_owned()).await?;
/// assert_eq!(loud, "ADA");
/// # std::fs::remove_dir_all(state)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// See [`ConnectError`].
pub async fn connect(url: &str) -> Result<Client, ConnectError> {
    Client::connect(url).await
}
