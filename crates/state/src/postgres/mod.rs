//! A store that nodes share: one table of a PostgreSQL server.
//!
//! All operations go over one connection, without waiting for each other's answers. A connection that is lost, or on
//! which an operation had no answer in time, is made again by the next operation; operations that wait for an answer
//! fail.

mod settings;
mod tls;

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use callboard_core::keyed::{Fence, StateKey, StateStore, StoreError, StoreFuture, StoredState};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Connection, NoTls, Row, Socket, Statement};

use self::settings::{Settings, TlsMode};
use self::tls::HandshakeError;

/// How long an operation may take, with a new connection: as the load of a key.
const WITHIN: Duration = Duration::from_secs(10);

/// How long one server of several may take for a connection: the next one is tried then, within the same operation.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// An operation that was given up after this time has found a silent server. One that was given up earlier says
/// nothing.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// When the kernel gives a silent connection up.
const TCP_TIMEOUT: Duration = Duration::from_secs(10);

/// Operations wait for each other on the server, so none waits long there, such as for the lock of a row.
const LIMITS: &str = "SET lock_timeout = '1s'; SET statement_timeout = '5s'";

/// All epochs are numbers of one sequence, so none comes twice, also if the record of a key was removed meanwhile.
const CLAIM: &str = "INSERT INTO callboard_keyed_actors AS record (kind, key, epoch, version, owner) \
     VALUES ($1, $2, nextval('callboard_keyed_epochs'), 0, $3) \
     ON CONFLICT (kind, key) DO UPDATE SET owner = excluded.owner, \
     epoch = greatest(record.epoch + 1, nextval('callboard_keyed_epochs')) \
     RETURNING epoch, version, owner, state";

const LOAD: &str = "SELECT epoch, version, owner, state FROM callboard_keyed_actors WHERE kind = $1 AND key = $2";

const SAVE: &str = "UPDATE callboard_keyed_actors SET version = version + 1, state = $5 \
     WHERE kind = $1 AND key = $2 AND epoch = $3 AND version = $4 RETURNING version";

const REMOVE: &str = "DELETE FROM callboard_keyed_actors WHERE kind = $1 AND key = $2 AND epoch = $3 AND version = $4";

/// Keeps the state of keyed actors in a table of a PostgreSQL server, from version 9.5 on, which all nodes of a cluster
/// use. Each operation is one statement, and each save is a transaction of its own: it survives what a commit of the
/// server survives (`synchronous_commit`).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_state::PostgresStore;
///
/// let store = PostgresStore::try_new("host=db user=callboard dbname=carts")?;
/// // Once for a database, by a user who may make tables.
/// store.create_table().await?;
/// # Ok(())
/// # }
/// ```
///
/// All operations share one connection, so the store sets `lock_timeout` and `statement_timeout` on it. A connection on
/// which an operation was given up is replaced.
///
/// # TLS
///
/// `sslmode` and `sslrootcert` have the meaning of libpq, the library of `psql`; a socket of the machine has no TLS.
///
/// | `sslmode` | TLS | the certificate of the server |
/// |---|---|---|
/// | `disable` | no | |
/// | `prefer`, the default | if the server has it: else nothing is encrypted | is not verified |
/// | `require` | always | is not verified; with `sslrootcert`, as `verify-ca` |
/// | `verify-ca` | always | must be of an authority in the file `sslrootcert` |
/// | `verify-full` | always | the same, else of an authority of the system; and for the name in `host` |
///
/// Only `verify-full` keeps out everybody who can read and change the traffic, and `verify-ca` with an authority that
/// issues certificates for this server alone. With less, `channel_binding=require` keeps a password from being used for
/// more than a proof that is bound to the connection. The file is read by [`try_new`](Self::try_new). Certificates of
/// clients (`sslcert`) are not supported.
#[derive(Debug)]
pub struct PostgresStore {
    settings: Settings,
    makes_table: bool,
    session: Mutex<Option<Arc<Session>>>,
}

/// A connection with its statements.
#[derive(Debug)]
struct Session {
    client: Client,
    claim: Statement,
    load: Statement,
    save: Statement,
    remove: Statement,
    /// An operation had no answer in time.
    is_silent: AtomicBool,
}

/// An operation in progress, which may be given up.
struct Waiting {
    session: Arc<Session>,
    since: Instant,
    is_answered: bool,
}

impl Session {
    fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.is_silent.load(Ordering::Relaxed)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_answered && self.since.elapsed() >= SILENT_AFTER {
            self.session.is_silent.store(true, Ordering::Relaxed);
        }
    }
}

/// Why a server could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectStoreError {
    /// The text is no configuration, such as `host=db user=callboard dbname=carts`, or a URL `postgres://…`; or its
    /// `sslmode` and `sslrootcert` do not fit, or name no file of authorities. No part of a password is in it.
    #[error("the configuration of the connection cannot be read: {0}")]
    Config(String),
    /// The server cannot be reached, refuses the user, or does not make the table.
    #[error("the server cannot be used: {0}")]
    Server(String),
}

impl PostgresStore {
    /// What [`create_table`](Self::create_table) runs. It may run again. A table can have records from before the
    /// sequence: the sequence then goes on from their greatest epoch. The lock keeps claims out between reading the
    /// sequence and setting it, so it never goes back.
    pub const TABLE: &'static str = "CREATE TABLE IF NOT EXISTS callboard_keyed_actors (\
         kind bytea NOT NULL, key bytea NOT NULL, epoch bigint NOT NULL, version bigint NOT NULL, \
         owner text NOT NULL, state bytea, PRIMARY KEY (kind, key)); \
         CREATE SEQUENCE IF NOT EXISTS callboard_keyed_epochs; \
         DO $$ BEGIN \
         IF (SELECT max(epoch) FROM callboard_keyed_actors) > (SELECT last_value FROM callboard_keyed_epochs) THEN \
         LOCK TABLE callboard_keyed_actors IN SHARE ROW EXCLUSIVE MODE; \
         PERFORM setval('callboard_keyed_epochs', max(epoch)) FROM callboard_keyed_actors \
         HAVING max(epoch) > (SELECT last_value FROM callboard_keyed_epochs); \
         END IF; END $$";

    /// A store on the server that `config` names: `host=db user=callboard dbname=carts`, or a URL `postgres://…`.
    /// Nothing is connected before the first operation. The authorities that it trusts are read now.
    ///
    /// # Errors
    ///
    /// [`ConnectStoreError::Config`].
    pub fn try_new(config: &str) -> Result<Self, ConnectStoreError> {
        let mut settings = Settings::read(config)?;
        let config = &mut settings.config;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WITHIN);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(TCP_TIMEOUT);
        }
        if config.get_keepalives_idle() > TCP_TIMEOUT {
            config.keepalives_idle(TCP_TIMEOUT).keepalives_interval(CONNECT_WITHIN).keepalives_retries(3);
        }
        if config.get_application_name().is_none() {
            config.application_name("callboard");
        }
        Ok(Self { settings, makes_table: false, session: Mutex::default() })
    }

    /// A connection that finds no table or sequence makes them, if its user may. By default nodes only use them; see
    /// [`create_table`](Self::create_table).
    #[must_use]
    pub fn making_table(mut self) -> Self {
        self.makes_table = true;
        self
    }

    /// Makes the table and the sequence of epochs, if they do not exist, and lets the sequence go on from the greatest
    /// epoch of the table. Once for a database, by the user who owns both. The user of the nodes needs `SELECT`,
    /// `INSERT`, `UPDATE` and `DELETE` on the table `callboard_keyed_actors`, and `USAGE` on the sequence
    /// `callboard_keyed_epochs`.
    ///
    /// # Errors
    ///
    /// [`ConnectStoreError::Server`].
    pub async fn create_table(&self) -> Result<(), ConnectStoreError> {
        let making = async {
            let client = connect(&self.settings).await?;
            client.batch_execute(Self::TABLE).await
        };
        let made =
            timeout(WITHIN, making).await.map_err(|_| ConnectStoreError::Server("no answer in time".to_owned()))?;
        made.map_err(|error| ConnectStoreError::Server(text_of(&error)))
    }

    /// The connection, which is made if there is none.
    async fn session(&self) -> Result<Arc<Session>, tokio_postgres::Error> {
        let mut session = self.session.lock().await;
        if let Some(open) = session.as_ref().filter(|open| open.is_usable()) {
            return Ok(Arc::clone(open));
        }
        let client = connect(&self.settings).await?;
        client.batch_execute(LIMITS).await?;
        let claim = match client.prepare(CLAIM).await {
            Err(error) if self.makes_table && error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                if let Err(error) = client.batch_execute(Self::TABLE).await {
                    // It may be there now, made by another user.
                    tracing::debug!(parent: None, reason = text_of(&error), "the table of keyed actors was not made");
                }
                client.prepare(CLAIM).await?
            }
            claim => claim?,
        };
        let load = client.prepare(LOAD).await?;
        let (save, remove) = (client.prepare(SAVE).await?, client.prepare(REMOVE).await?);
        Ok(Arc::clone(session.insert(Arc::new(Session {
            client,
            claim,
            load,
            save,
            remove,
            is_silent: AtomicBool::new(false),
        }))))
    }

    fn within<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce(Arc<Session>) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let running = async {
                let session = self.session().await.map_err(|error| failed(&error))?;
                let mut waiting = Waiting { session: Arc::clone(&session), since: Instant::now(), is_answered: false };
                let outcome = operation(session).await;
                waiting.is_answered = true;
                outcome
            };
            let late = |_| StoreError::Failed(format!("no answer within {WITHIN:?}"));
            timeout(WITHIN, running).await.map_err(late)?
        })
    }
}

async fn connect(Settings { config, tls }: &Settings) -> Result<Client, tokio_postgres::Error> {
    let Some(tls) = tls else { return config.connect(NoTls).await.map(started) };
    let connected = config.connect(tls.clone()).await.map(started);
    match connected {
        Err(error) if tls.mode() == TlsMode::Prefer && is_refusal(&error) => {
            // As libpq does: this mode promises nothing.
            config.connect(NoTls).await.map(started).map_err(|_| error)
        }
        connected => connected,
    }
}

/// Whether the server might take a connection without TLS.
fn is_refusal(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<HandshakeError>())
        || error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
}

fn started<S>((client, connection): (Client, Connection<Socket, S>)) -> Client
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            let reason = text_of(&error);
            tracing::warn!(parent: None, reason, "the connection to the store of keyed actors was lost");
        }
    });
    client
}

/// What `tokio-postgres` says of a server without TLS.
const NO_TLS: &str = "server does not support TLS";

/// The error with its cause, which says more, and the setting that may be wrong.
fn text_of(error: &tokio_postgres::Error) -> String {
    let Some(cause) = error.source() else { return error.to_string() };
    let cause_text = cause.to_string();
    if cause.is::<HandshakeError>() {
        return cause_text;
    }
    if cause_text == NO_TLS {
        return "the server has no TLS, which `sslmode` asks for: turn it on there (`ssl = on`), or, in a network that \
                you trust, set `sslmode=disable`"
            .to_owned();
    }
    let refusal = error.as_db_error().filter(|error| *error.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
    let cure = match refusal.map(tokio_postgres::error::DbError::message) {
        Some(message) if message.ends_with("no encryption") => {
            " (the server may want TLS: set `sslmode` to verify-full or require)"
        }
        Some(message) if message.ends_with("SSL encryption") => {
            " (the server may want no TLS from here: set `sslmode=disable`)"
        }
        _ => "",
    };
    format!("{error}: {cause_text}{cure}")
}

fn failed(error: &tokio_postgres::Error) -> StoreError {
    StoreError::Failed(text_of(error))
}

/// A number of the table.
fn number(row: &Row, column: usize) -> Result<u64, StoreError> {
    let number: i64 = row.try_get(column).map_err(|error| failed(&error))?;
    u64::try_from(number).map_err(|_| StoreError::Failed(format!("the table has the number {number}")))
}

fn record(row: &Row) -> Result<StoredState, StoreError> {
    let state: Option<Vec<u8>> = row.try_get(3).map_err(|error| failed(&error))?;
    Ok(StoredState {
        epoch: number(row, 0)?,
        version: number(row, 1)?,
        owner: row.try_get(2).map_err(|error| failed(&error))?,
        state: state.map(Bytes::from),
    })
}

impl StateStore for PostgresStore {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        self.within(move |session: Arc<Session>| -> StoreFuture<'a, StoredState> {
            Box::pin(async move {
                let (kind, key) = (key.kind.as_bytes(), key.key.as_bytes());
                let row = session.client.query_one(&session.claim, &[&kind, &key, &owner]).await;
                record(&row.map_err(|error| failed(&error))?)
            })
        })
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        self.within(move |session: Arc<Session>| -> StoreFuture<'a, Option<StoredState>> {
            Box::pin(async move {
                let (kind, key) = (key.kind.as_bytes(), key.key.as_bytes());
                let row = session.client.query_opt(&session.load, &[&kind, &key]).await;
                row.map_err(|error| failed(&error))?.as_ref().map(record).transpose()
            })
        })
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: Bytes) -> StoreFuture<'a, u64> {
        self.within(move |session: Arc<Session>| -> StoreFuture<'a, u64> {
            Box::pin(async move {
                let (kind, key, state) = (key.kind.as_bytes(), key.key.as_bytes(), &state[..]);
                // A number that is too large for the table is in no record.
                let (Ok(epoch), Ok(version)) = (i64::try_from(fence.epoch), i64::try_from(fence.version)) else {
                    return Err(StoreError::Conflict);
                };
                let saved = session.client.query_opt(&session.save, &[&kind, &key, &epoch, &version, &state]).await;
                number(&saved.map_err(|error| failed(&error))?.ok_or(StoreError::Conflict)?, 0)
            })
        })
    }

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        self.within(move |session: Arc<Session>| -> StoreFuture<'a, ()> {
            Box::pin(async move {
                let (kind, key) = (key.kind.as_bytes(), key.key.as_bytes());
                let (Ok(epoch), Ok(version)) = (i64::try_from(fence.epoch), i64::try_from(fence.version)) else {
                    return Err(StoreError::Conflict);
                };
                let removed = session.client.execute(&session.remove, &[&kind, &key, &epoch, &version]).await;
                let removed = removed.map_err(|error| failed(&error))?;
                if removed == 1 { Ok(()) } else { Err(StoreError::Conflict) }
            })
        })
    }

    fn is_local(&self) -> bool {
        false
    }
}
