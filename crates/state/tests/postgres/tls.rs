//! TLS with a server whose certificate the test makes, in each `sslmode`.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use callboard_core::keyed::{StateKey, StateStore, StoreError};
use callboard_state::PostgresStore;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SignatureAlgorithm};
use tokio_postgres::{Client, NoTls};

use super::server::Server;

/// An authority of this name, in this file, which signs so.
fn authority(name: &str, file: &str, signature: &'static SignatureAlgorithm) -> Issuer<'static, KeyPair> {
    let (mut params, key) = (CertificateParams::new([]).unwrap(), KeyPair::generate_for(signature).unwrap());
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(file, params.self_signed(&key).unwrap().pem()).unwrap();
    Issuer::new(params, key)
}

/// Users by what the server demands of them.
const RULES: &str = "local all all trust
hostssl all callboard 127.0.0.1/32 trust
hostnossl all plain 127.0.0.1/32 trust
hostssl all secret 127.0.0.1/32 scram-sha-256
";

const USERS: &str = "CREATE USER plain SUPERUSER; CREATE USER secret SUPERUSER PASSWORD 'hunter2'";

/// A server for `db.internal` at a port of this machine, with the authority that has issued its certificate, another
/// one, and another one of the same name.
struct Lab {
    server: Server,
    port: u16,
    right: String,
    wrong: String,
    namesake: String,
}

impl Lab {
    /// With this signature in the certificate. `None` if the programs are not here.
    async fn start(name: &str, signature: &'static SignatureAlgorithm) -> Option<Self> {
        let mut server = super::server(name)?;
        let file = |name: &str| format!("{}/{name}.pem", server.directory.display());
        let (right, wrong, namesake) = (file("right"), file("wrong"), file("namesake"));
        let (issuer, key) = (authority("ours", &right, signature), KeyPair::generate().unwrap());
        authority("theirs", &wrong, signature);
        authority("ours", &namesake, signature);
        let certificate = CertificateParams::new(["db.internal".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        server.until_up().await;
        server.stop();
        server.write("server.crt", &certificate.pem());
        server.write("server.key", &key.serialize_pem());
        server.write("pg_hba.conf", RULES);
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut lab = Self { server, port, right, wrong, namesake };
        lab.run(true);
        lab.operator().await.batch_execute(USERS).await.unwrap();
        Some(lab)
    }

    fn run(&mut self, has_tls: bool) {
        self.server.stop();
        let settings = format!("listen_addresses = '127.0.0.1'\nport = {}\nssl = {has_tls}", self.port);
        self.server.write("postgresql.auto.conf", &settings);
        self.server.run();
    }

    /// A connection over the server's socket, once it is up.
    async fn operator(&self) -> Client {
        let text =
            format!("host={} port={} user=callboard dbname=postgres", self.server.directory.display(), self.port);
        let connecting = async {
            loop {
                if let Ok((client, connection)) = tokio_postgres::connect(&text, NoTls).await {
                    tokio::spawn(connection);
                    return client;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), connecting).await.expect("the server starts")
    }

    /// Whether a store with these words, for a server of this name, has a connection with TLS; or why it has none.
    async fn secured(&self, host: &str, words: &str) -> Result<bool, String> {
        let start = format!("host={host} hostaddr=127.0.0.1 port={} user=callboard dbname=postgres", self.port);
        let store = PostgresStore::try_new(&format!("{start} {words}")).map_err(|error| error.to_string())?;
        let claimed = store.claim(StateKey { kind: "cart", key: "ann" }, "a node").await;
        claimed.map_err(|error| match error {
            StoreError::Failed(reason) => reason,
            other => panic!("{other}"),
        })?;
        let sessions = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = \
                        'callboard' AND state = 'idle' ORDER BY backend_start DESC LIMIT 1";
        Ok(self.operator().await.query_one(sessions, &[]).await.unwrap().get(0))
    }
}

const NAME: &str = "db.internal";
const OTHER: &str = "other.internal";

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_as_secure_as_its_sslmode_says() {
    let Some(mut lab) = Lab::start("tls", &PKCS_ECDSA_P256_SHA256).await else { return };
    let [right, wrong, namesake] = [&lab.right, &lab.wrong, &lab.namesake].map(|file| format!("sslrootcert={file}"));
    for (host, words, is_secured) in [
        (NAME, "", true),
        (NAME, "sslmode=require", true),
        (NAME, &format!("sslmode=require {right}"), true),
        (OTHER, &format!("sslmode=verify-ca {right}"), true),
        (NAME, &format!("sslmode=verify-full {right}"), true),
        (OTHER, "user=secret password=hunter2 sslmode=require channel_binding=require", true),
        (NAME, "user=plain sslmode=disable", false),
        (NAME, "user=plain", false),
    ] {
        assert_eq!(lab.secured(host, words).await, Ok(is_secured), "{words}");
    }
    let untrusted = "is of no authority that is trusted (`sslmode=";
    for (host, words, expected) in [
        (NAME, format!("sslmode=verify-full {wrong}"), untrusted),
        (NAME, format!("sslmode=verify-full {namesake}"), untrusted),
        (NAME, format!("sslmode=verify-ca {wrong}"), untrusted),
        (NAME, format!("sslmode=require {wrong}"), untrusted),
        (OTHER, format!("sslmode=verify-full {right}"), "only valid for DnsName(\"db.internal\")"),
        (NAME, "sslmode=disable".to_owned(), "set `sslmode` to verify-full or require"),
        (NAME, "sslmode=require user=plain".to_owned(), "set `sslmode=disable`"),
        (NAME, "sslmode=require user=secret password=hunter3".to_owned(), "password authentication failed"),
    ] {
        let error = lab.secured(host, &words).await.unwrap_err();
        assert!(error.contains(expected) && !error.contains("hunter3"), "{words}: {error}");
    }

    lab.run(false);
    lab.operator().await.batch_execute("SELECT 1").await.unwrap();
    for mode in ["require", "verify-full"] {
        let error = lab.secured(NAME, &format!("sslmode={mode} {right}")).await.unwrap_err();
        assert!(error.starts_with("the server has no TLS, which `sslmode` asks for"), "{error}");
    }
    assert_eq!(lab.secured(NAME, "user=plain").await, Ok(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_not_proven_to_an_unverified_server_whose_certificate_cannot_bind_the_proof() {
    let Some(lab) = Lab::start("unbound", &PKCS_ED25519).await else { return };
    let (right, secret) = (format!("sslrootcert={}", lab.right), "user=secret password=hunter2");
    for words in [format!("{secret} sslmode=require"), format!("{secret} sslmode=prefer")] {
        let error = lab.secured(NAME, &words).await.unwrap_err();
        assert!(error.contains("cannot bind the proof to the connection"), "{words}: {error}");
    }
    for words in [
        format!("{secret} sslmode=require channel_binding=disable"),
        format!("{secret} sslmode=require {right}"),
        format!("{secret} sslmode=verify-full {right}"),
        "sslmode=require".to_owned(),
    ] {
        assert_eq!(lab.secured(NAME, &words).await, Ok(true), "{words}");
    }
    let bound = format!("{secret} sslmode=verify-full {right} channel_binding=require");
    let error = lab.secured(NAME, &bound).await.unwrap_err();
    assert!(error.contains("server did not use channel binding"), "{error}");
}
