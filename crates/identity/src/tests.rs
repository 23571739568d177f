//! The decisions of an authority without a network, and the files of identities.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use ring::hmac;

use crate::QuicUrl;
use crate::authority::{Authority, JoinDenied, JoinRequest, TokenSpec};
use crate::certificate::{Member, Role};
use crate::error::IdentityError;
use crate::identity::{Identity, IssuerClient, Origin, certificate_request, read_chain, save_member};
use crate::token::{EXPORTED_BYTES, JoinToken};

const EXPORTED: [u8; EXPORTED_BYTES] = [7; EXPORTED_BYTES];

struct Lab {
    directory: PathBuf,
    authority: Authority,
}

impl Lab {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("callboard-authority-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let authority = Authority::init(&directory.join("authority"), "lab").unwrap();
        Self { directory, authority }
    }

    fn token(&self, change: impl FnOnce(&mut TokenSpec)) -> JoinToken {
        let mut spec = TokenSpec::default();
        change(&mut spec);
        self.authority.token(&spec).unwrap()
    }

    /// Joins with this key's request.
    fn admit(&self, token: &JoinToken, name: &str, request: &str, now: SystemTime) -> Result<Member, JoinDenied> {
        self.admit_at(&self.authority, token, name, request, now)
    }

    fn admit_at(
        &self,
        authority: &Authority,
        token: &JoinToken,
        name: &str,
        request: &str,
        now: SystemTime,
    ) -> Result<Member, JoinDenied> {
        let (proof, id) = (token.proof(&EXPORTED, name, request.as_bytes()), token.id());
        let joining = JoinRequest {
            cluster: self.authority.cluster(),
            token: &id,
            name,
            proof: &proof,
            exported: &EXPORTED,
            request: request.as_bytes(),
        };
        authority.admit(&joining, now).map(|chain| member(&chain))
    }

    /// Joins under this name, and keeps the identity in a directory.
    fn join(&self, token: &JoinToken, name: &str) -> PathBuf {
        let directory = self.directory.join("member");
        crate::files::private_directory(&directory).unwrap();
        let (key, request) = certificate_request().unwrap();
        let (proof, id) = (token.proof(&EXPORTED, name, request.as_bytes()), token.id());
        let (cluster, request) = (self.authority.cluster(), request.as_bytes());
        let joining = JoinRequest { cluster, token: &id, name, proof: &proof, exported: &EXPORTED, request };
        let chain = self.authority.admit(&joining, SystemTime::now()).unwrap();
        save_member(&directory, &"quic://127.0.0.1:1".parse().unwrap(), &key, &chain).unwrap();
        directory
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn member(chain: &str) -> Member {
    Member::from_certificate(&read_chain(chain.as_bytes()).unwrap().presented[0]).unwrap()
}

fn denied<T: std::fmt::Debug>(outcome: Result<T, JoinDenied>) -> JoinDenied {
    outcome.unwrap_err()
}

#[test]
fn a_renewed_certificate_keeps_name_role_and_life() {
    let (lab, now) = (Lab::new("renewed"), SystemTime::now());
    for role in Role::ALL {
        let token = lab.token(|spec| {
            spec.role = role;
            spec.certificate_life = Duration::from_secs(600);
        });
        let joined = lab.admit(&token, role.as_str(), &certificate_request().unwrap().1, now).unwrap();
        let later = now + Duration::from_secs(400);
        let renewed =
            lab.authority.renew(Some(joined.clone()), certificate_request().unwrap().1.as_bytes(), later).unwrap();
        let renewed = member(&renewed);
        assert_eq!(renewed.role, role, "a client stays a client");
        assert_eq!((&renewed.name, &renewed.id), (&joined.name, &joined.id));
        assert_eq!(renewed.validity.life(), Duration::from_secs(600));
        assert!(renewed.validity.not_after > joined.validity.not_after);
    }
    let outcome = lab.authority.renew(None, certificate_request().unwrap().1.as_bytes(), now);
    assert!(matches!(denied(outcome), JoinDenied::NoCertificate));
}

#[test]
fn a_token_keeps_its_use_where_there_is_no_room_for_the_record_of_the_member() {
    let (lab, now) = (Lab::new("room"), SystemTime::now());
    let (token, members) = (lab.token(|_| {}), lab.directory.join("authority/members"));
    let _ = std::fs::remove_dir(&members);
    std::fs::write(&members, "").unwrap();
    let outcome = lab.admit(&token, "left", &certificate_request().unwrap().1, now);
    assert!(matches!(denied(outcome), JoinDenied::Failed(_)));
    std::fs::remove_file(&members).unwrap();
    // Another key, which a use that was spent would not admit.
    lab.admit(&token, "left", &certificate_request().unwrap().1, now).unwrap();
    let left: Vec<_> = std::fs::read_dir(&members).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["left"], "no draft is left");
}

/// The key and the name are the same, but the removed member stays removed.
#[test]
fn a_removed_member_that_joins_again_with_its_key_cannot_renew_the_old_certificate() {
    let (lab, now) = (Lab::new("rejoined"), SystemTime::now());
    let request = certificate_request().unwrap().1;
    let before = lab.admit(&lab.token(|_| {}), "left", &request, now).unwrap();
    assert!(lab.authority.remove("left").unwrap());
    let outcome = lab.authority.renew(Some(before.clone()), request.as_bytes(), now);
    assert!(matches!(denied(outcome), JoinDenied::RemovedMember(_)));
    let after = lab.admit(&lab.token(|_| {}), "left", &request, now).unwrap();
    let outcome = lab.authority.renew(Some(before), request.as_bytes(), now);
    assert!(matches!(denied(outcome), JoinDenied::RemovedMember(_)));
    assert!(lab.authority.renew(Some(after), request.as_bytes(), now).is_ok());
}

#[test]
fn a_member_has_the_role_in_the_member_list() {
    let (lab, now) = (Lab::new("role"), SystemTime::now());
    let request = certificate_request().unwrap().1;
    let client = lab.admit(&lab.token(|spec| spec.role = Role::Client), "desk", &request, now).unwrap();
    let for_nodes = lab.token(|_| {});
    assert!(matches!(denied(lab.admit(&for_nodes, "desk", &request, now)), JoinDenied::OtherRole(_)));
    // The denied request did not use up the token.
    assert_eq!(lab.admit(&for_nodes, "left", &request, now).unwrap().role, Role::Node);
    let as_node = Member { role: Role::Node, ..client.clone() };
    let outcome = lab.authority.renew(Some(as_node), request.as_bytes(), now);
    assert!(matches!(denied(outcome), JoinDenied::OtherRole(_)));
    assert!(lab.authority.renew(Some(client), request.as_bytes(), now).is_ok());
}

#[test]
fn an_invalid_name_is_quoted_short_without_control_characters() {
    let (lab, now) = (Lab::new("name"), SystemTime::now());
    let token = lab.token(|_| {});
    let name = format!("\u{1b}[2J\n{}", "x".repeat(60_000));
    let denial = lab.admit(&token, &name, &certificate_request().unwrap().1, now).unwrap_err();
    let message = denial.to_string();
    assert!(matches!(denial, JoinDenied::InvalidName(_)));
    assert!(message.len() < 200 && !message.contains(['\u{1b}', '\n']), "{message}");
    assert!(message.starts_with("\"\\u{1b}[2J\\nxxx"), "{message}");
}

/// Half a backup.
#[test]
fn a_key_of_another_certificate_makes_no_authority() {
    let (lab, other) = (Lab::new("half"), Lab::new("other-half"));
    let key = |lab: &Lab| lab.directory.join("authority/authority.key");
    std::fs::copy(key(&other), key(&lab)).unwrap();
    let error = Authority::open(&lab.directory.join("authority")).unwrap_err();
    assert!(matches!(error, IdentityError::DamagedAuthority { .. }), "{error:?}");
    assert!(error.to_string().contains("authority.key") && error.to_string().contains("backup"), "{error}");

    let development = |lab: &Lab| lab.directory.join("development");
    for lab in [&lab, &other] {
        Identity::development_in(&development(lab)).unwrap();
    }
    std::fs::copy(development(&other).join("authority.key"), development(&lab).join("authority.key")).unwrap();
    let error = Identity::development_in(&development(&lab)).unwrap_err();
    assert!(matches!(error, IdentityError::Damaged { .. }), "{error:?}");
}

/// Another process changes the directory while this one runs.
#[test]
fn a_running_process_refuses_a_replaced_identity() {
    let lab = Lab::new("replaced");
    let token = lab.token(|spec| spec.uses = 9);
    let identity = Identity::open(&lab.join(&token, "left")).unwrap();
    let Origin::Member(membership) = identity.origin() else { panic!("{identity:?}") };
    let own = identity.presented().member.clone();
    assert_eq!(membership.read(&own).unwrap().member, own);
    lab.join(&token, "right");
    let error = membership.read(&own).unwrap_err();
    assert!(matches!(error, IdentityError::Replaced { .. }), "{error:?}");
    for other in [Member { id: "0".to_owned(), ..own.clone() }, Member { role: Role::Client, ..own }] {
        assert!(membership.read(&other).is_err());
    }
}

/// An issuer that never answers.
struct SilentIssuer;

impl IssuerClient for SilentIssuer {
    async fn request(
        &self,
        _: &Identity,
        _: &QuicUrl,
        _: &str,
    ) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        std::future::pending().await
    }
}

/// Files are used on the runtime's blocking threads, all of which are busy here.
#[test]
fn the_runtime_does_not_wait_for_the_disk_of_a_renewal() {
    let lab = Lab::new("disk");
    let member = Identity::open(&lab.join(&lab.token(|_| {}), "left")).unwrap();
    let authority = Identity::from_authority(lab.authority.clone()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (stuck, free) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || free.recv());
        let mut renewals = [&authority, &member].map(|identity| Box::pin(identity.next_presented(&SilentIssuer)));
        for renewal in &mut renewals {
            let polled = std::future::poll_fn(|context| Poll::Ready(renewal.as_mut().poll(context)));
            assert!(polled.await.is_pending(), "the renewal used the disk on this thread");
        }
        drop(stuck);
        busy.await.unwrap().unwrap_err();
        let [authority_renewal, _] = renewals;
        authority_renewal.await.unwrap();
    });
}

#[cfg(unix)]
#[test]
fn a_symbolic_link_with_a_trailing_slash_is_refused() {
    let lab = Lab::new("slash");
    let link = lab.directory.join("link");
    std::os::unix::fs::symlink(lab.directory.join("authority"), &link).unwrap();
    for end in ["", "/", "/.", "//./"] {
        let path = PathBuf::from(format!("{}{end}", link.display()));
        let error = Authority::open(&path).unwrap_err();
        assert!(matches!(error, IdentityError::Exposed { .. }), "{end}: {error:?}");
    }
    let itself = format!("{}/", lab.directory.join("authority").display());
    assert!(Authority::open(itself.as_ref()).is_ok());
}

#[cfg(unix)]
#[test]
fn records_in_a_directory_that_others_can_use_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (lab, now) = (Lab::new("records"), SystemTime::now());
    let token = lab.token(|spec| spec.uses = 2);
    lab.admit(&token, "left", &certificate_request().unwrap().1, now).unwrap();
    for records in ["tokens", "members"] {
        let records = lab.directory.join("authority").join(records);
        let set = |mode| std::fs::set_permissions(&records, PermissionsExt::from_mode(mode)).unwrap();
        set(0o770);
        let outcome = lab.admit(&token, "left", &certificate_request().unwrap().1, now);
        assert!(matches!(denied(outcome), JoinDenied::Failed(_)));
        set(0o700);
    }
    assert!(lab.admit(&token, "right", &certificate_request().unwrap().1, now).is_ok());
}

/// Root's sticky directory, as the mount point of a secret, lets every user put a file in it.
#[cfg(unix)]
#[test]
fn issuers_that_another_user_can_change_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new("issuers");
    let directory = lab.join(&lab.token(|_| {}), "left");
    let issuers = directory.join("issuers");
    let set = |mode| std::fs::set_permissions(&issuers, PermissionsExt::from_mode(mode)).unwrap();
    for (mode, is_accepted) in [(0o600, true), (0o644, true), (0o664, false), (0o646, false)] {
        set(mode);
        let opened = Identity::open(&directory);
        assert_eq!(opened.is_ok(), is_accepted, "{mode:o}: {opened:?}");
        assert!(is_accepted || matches!(opened.unwrap_err(), IdentityError::Exposed { .. }));
    }
    set(0o644);
    // Only root can give a file away.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&issuers, Some(70), None).unwrap();
        let error = Identity::open(&directory).unwrap_err();
        assert!(matches!(error, IdentityError::Exposed { .. }), "{error:?}");
    }
}

#[test]
fn derived_keys_survive_a_restart_and_differ_by_address() {
    let directory = std::env::temp_dir().join(format!("callboard-derived-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    Authority::init(&directory.join("authority"), "lab").unwrap();
    let (here, there): (SocketAddr, SocketAddr) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
    let member = || Identity::open(&directory.join("authority")).unwrap();
    let development = || Identity::development_in(&directory.join("development")).unwrap();
    for (before, after) in [(member(), member()), (development(), development())] {
        let tag = |identity: &Identity, purpose, address| {
            hmac::sign(&identity.derived_key(purpose, address), b"id").as_ref().to_vec()
        };
        let first = tag(&before, "connection ids", here);
        assert_eq!(first, tag(&after, "connection ids", here));
        assert_ne!(first, tag(&before, "connection ids", there));
        assert_ne!(first, tag(&before, "another", here));
    }
}

/// Requests, signs and installs an issuer.
fn issuer(root: &Authority, directory: &Path, name: &str, life: Duration) -> Result<Authority, IdentityError> {
    let request = Authority::request_issuer(directory)?;
    let (_, chain) = root.certify_issuer(&request, name, life, SystemTime::now())?;
    Ok(Authority::install_issuer(directory, &chain, SystemTime::now())?.1)
}

const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

#[test]
fn an_issuer_issues_within_its_own_time_and_is_renewed_with_the_same_key() {
    let lab = Lab::new("issuer");
    let directory = lab.directory.join("left");
    let error = Authority::open(&directory).unwrap_err();
    assert!(matches!(error, IdentityError::NoAuthority { .. }), "{error}");
    let brief = Duration::from_secs(600);
    let left = issuer(&lab.authority, &directory, "left", brief).unwrap();
    assert_eq!(left.cluster(), lab.authority.cluster());
    let own = Identity::from_authority(left.clone()).unwrap();
    assert_eq!((own.name().as_str(), own.role()), ("left", Role::Node));
    assert!(own.time_left() <= brief);
    // A member of the default life, as long as its issuer: it keeps its life for the next renewal.
    let (now, key) = (SystemTime::now(), certificate_request().unwrap().1);
    let token = left.token(&TokenSpec::default()).unwrap();
    assert_eq!(token.pin(), lab.token(|_| {}).pin(), "the pin is that of the root");
    let joined = lab.admit_at(&left, &token, "third", &key, now).unwrap();
    let issuer_id = left.issuer().unwrap().unwrap().id;
    assert_eq!((&joined.issuer, joined.life), (&issuer_id, TokenSpec::DEFAULT_CERTIFICATE_LIFE));
    assert!(joined.validity.left(now) <= brief);
    // Renewed by the root while the authority is open.
    let again = issuer(&lab.authority, &directory, "left", MONTH).unwrap();
    assert_eq!(again.issuer().unwrap().unwrap().id, issuer_id);
    let renewed = member(&left.renew(Some(joined), key.as_bytes(), now).unwrap());
    assert_eq!(renewed.validity.life(), TokenSpec::DEFAULT_CERTIFICATE_LIFE);
}

#[test]
fn a_certificate_that_is_not_of_this_issuer_is_not_installed() {
    let (lab, other) = (Lab::new("install"), Lab::new("other-install"));
    let [left, right] = ["left", "right"].map(|name| lab.directory.join(name));
    let certify = |root: &Authority, directory: &Path, name: &str| {
        let request = Authority::request_issuer(directory).unwrap();
        root.certify_issuer(&request, name, MONTH, SystemTime::now()).unwrap().1
    };
    let of_left = certify(&lab.authority, &left, "left");
    let error = Authority::open(&left).unwrap_err();
    assert!(matches!(error, IdentityError::Uncertified { .. }), "{error}");
    certify(&lab.authority, &right, "right");
    let install = |directory: &Path, chain: &str, later: Duration| {
        Authority::install_issuer(directory, chain, SystemTime::now() + later).map(drop).unwrap_err().to_string()
    };
    let now = Duration::ZERO;
    assert!(install(&right, &of_left, now).contains("not the certificate of the key"));
    assert!(install(&left, &of_left, 2 * MONTH).contains("Expired"));
    // The issuer's certificate with the root of another cluster.
    let foreign = certify(&other.authority, &left, "left");
    let end = of_left.find("-----END").unwrap();
    let mixed = format!("{}{}", &of_left[..end], &foreign[foreign.find("-----END").unwrap()..]);
    assert!(!install(&left, &mixed, now).is_empty());
    Authority::install_issuer(&left, &of_left, SystemTime::now()).unwrap();
    assert!(install(&left, &foreign, now).contains("another cluster"));
    assert!(install(&left, &certify(&lab.authority, &left, "west"), now).contains("another name"));
    // Only the root signs issuers, and it is none.
    let below = Authority::open(&left).unwrap();
    let request = Authority::request_issuer(&right).unwrap();
    let error = below.certify_issuer(&request, "right", MONTH, SystemTime::now()).unwrap_err();
    assert!(matches!(error, IdentityError::NoRoot { .. }), "{error}");
    let error = Authority::request_issuer(&lab.directory.join("authority")).unwrap_err();
    assert!(matches!(error, IdentityError::Occupied { .. }), "{error}");
    for (name, life) in [("authority", MONTH), ("A", MONTH), ("right", 4 * MONTH), ("right", Duration::ZERO)] {
        let signed = lab.authority.certify_issuer(&request, name, life, SystemTime::now());
        assert!(matches!(signed, Err(IdentityError::Name { .. } | IdentityError::Limit { .. })), "{name} {signed:?}");
    }
}

#[test]
fn any_issuer_renews_a_member_until_one_of_them_has_removed_it() {
    let lab = Lab::new("any");
    let [left, right] =
        ["left", "right"].map(|name| issuer(&lab.authority, &lab.directory.join(name), name, MONTH).unwrap());
    let (now, key) = (SystemTime::now(), certificate_request().unwrap().1);
    let token = left.token(&TokenSpec::default()).unwrap();
    assert!(matches!(denied(lab.admit_at(&right, &token, "third", &key, now)), JoinDenied::UnknownToken));
    let third = lab.admit_at(&left, &token, "third", &key, now).unwrap();
    let renewed = member(&right.renew(Some(third.clone()), key.as_bytes(), now).unwrap());
    assert_eq!((&renewed.name, &renewed.id, renewed.life), (&third.name, &third.id, third.life));
    assert_ne!(renewed.issuer, third.issuer);
    // Both know it now, and a member of its name that has joined elsewhere is another one.
    assert_eq!(right.members().unwrap().members[0].name, "third");
    let namesake = Member { id: "0123456789abcdef".to_owned(), ..third.clone() };
    assert!(matches!(denied(right.renew(Some(namesake), key.as_bytes(), now)), JoinDenied::NameTaken(_)));
    assert!(right.remove("third").unwrap());
    assert!(matches!(denied(right.renew(Some(third.clone()), key.as_bytes(), now)), JoinDenied::RemovedMember(_)));
    // The other one learns of it.
    assert!(left.renew(Some(third.clone()), key.as_bytes(), now).is_ok());
    assert_eq!(left.take_over(&right.removed(now).unwrap(), now).unwrap(), 1);
    assert_eq!(left.take_over(&right.removed(now).unwrap(), now).unwrap(), 0);
    assert!(matches!(denied(left.renew(Some(third.clone()), key.as_bytes(), now)), JoinDenied::RemovedMember(_)));
    assert!(left.members().unwrap().members.is_empty());
    left.remember(&third, false, now).unwrap();
    assert!(left.members().unwrap().members.is_empty(), "a removed member is not remembered");
}

#[test]
fn the_members_of_a_removed_issuer_are_refused_everywhere() {
    let lab = Lab::new("stolen");
    let [left, right] =
        ["left", "right"].map(|name| issuer(&lab.authority, &lab.directory.join(name), name, MONTH).unwrap());
    let (now, key) = (SystemTime::now(), certificate_request().unwrap().1);
    let third = lab.admit_at(&left, &left.token(&TokenSpec::default()).unwrap(), "third", &key, now).unwrap();
    let of_left = Identity::from_authority(left).unwrap().presented().member.clone();
    right.remember(&of_left, true, now).unwrap();
    assert!(right.remove("left").unwrap());
    let removed = right.removed(now).unwrap();
    assert!(removed.excludes(&third) && removed.excludes(&of_left));
    assert!(matches!(denied(right.renew(Some(third.clone()), key.as_bytes(), now)), JoinDenied::RemovedMember(_)));
    // By its id, at an issuer that has never seen it.
    let error = lab.authority.renew(Some(Member { issuer: String::new(), ..third.clone() }), key.as_bytes(), now);
    assert!(error.is_ok());
    assert!(lab.authority.remove(&third.issuer).unwrap());
    assert!(matches!(denied(lab.authority.renew(Some(third), key.as_bytes(), now)), JoinDenied::RemovedMember(_)));
}

/// A thief signs what it likes, and renews it at another issuer before the removal.
#[test]
fn what_a_stolen_issuer_has_signed_is_refused_also_after_renewals_elsewhere() {
    let lab = Lab::new("laundered");
    let [left, right] =
        ["left", "right"].map(|name| issuer(&lab.authority, &lab.directory.join(name), name, MONTH).unwrap());
    let (now, key) = (SystemTime::now(), certificate_request().unwrap().1);
    let third = lab.admit_at(&left, &left.token(&TokenSpec::default()).unwrap(), "third", &key, now).unwrap();
    let (stolen, longest) = (third.issuer.clone(), Duration::from_secs(90 * 24 * 3600));
    let validity = third.validity;
    let via = (0..16).map(|n| format!("{n:016x}")).collect();
    let mut member_of = Member { life: Duration::from_secs(u64::MAX), via, ..third };
    right.remember(&member_of, false, now).unwrap();
    for authority in [&right, &lab.authority, &right, &lab.authority] {
        let presented = Member { validity, ..member_of };
        member_of = member(&authority.renew(Some(presented), key.as_bytes(), now).unwrap());
        assert!(member_of.life <= longest, "{:?}", member_of.life);
        assert_ne!(member_of.issuer, stolen);
    }
    assert!(lab.authority.remove(&stolen).unwrap());
    assert!(lab.authority.removed(now).unwrap().excludes(&member_of));
    assert!(matches!(denied(lab.authority.renew(Some(member_of), key.as_bytes(), now)), JoinDenied::RemovedMember(_)));
    // A record of any life can be removed.
    let path = lab.directory.join("right/members/third");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace(&longest.as_secs().to_string(), &u64::MAX.to_string())).unwrap();
    assert!(right.remove("third").unwrap());
    // An issuer does not exclude itself.
    for own in ["right".to_owned(), right.issuer().unwrap().unwrap().id] {
        assert!(matches!(right.remove(&own), Err(IdentityError::OwnId { .. })), "{own}");
    }
}

#[test]
fn an_issuer_that_ends_leaves_renewals_to_one_that_lives() {
    let (lab, brief) = (Lab::new("ending"), Duration::from_secs(600));
    let left = issuer(&lab.authority, &lab.directory.join("left"), "left", brief).unwrap();
    let right = issuer(&lab.authority, &lab.directory.join("right"), "right", MONTH).unwrap();
    let (now, key) = (SystemTime::now(), certificate_request().unwrap().1);
    let third = lab.admit_at(&left, &left.token(&TokenSpec::default()).unwrap(), "third", &key, now).unwrap();
    let later = now + Duration::from_secs(500);
    let outcome = left.renew(Some(third.clone()), key.as_bytes(), later);
    assert!(matches!(denied(outcome), JoinDenied::EndingIssuer));
    let renewed = member(&right.renew(Some(third), key.as_bytes(), later).unwrap());
    assert_eq!(renewed.validity.life(), TokenSpec::DEFAULT_CERTIFICATE_LIFE);
    // Its own node does not ask itself again and again for ever shorter certificates.
    let ends = left.issuer().unwrap().unwrap().validity.not_after;
    let error = left.issue_own(TokenSpec::DEFAULT_CERTIFICATE_LIFE, ends).unwrap_err();
    assert!(matches!(error, IdentityError::EndingIssuer { .. }), "{error}");
}

#[test]
fn the_directory_of_a_member_does_not_become_that_of_an_issuer() {
    let lab = Lab::new("member-issuer");
    let directory = lab.join(&lab.token(|_| {}), "left");
    let error = Authority::request_issuer(&directory).unwrap_err();
    assert!(matches!(error, IdentityError::MemberDirectory { .. }), "{error}");
    assert_eq!(Identity::open(&directory).unwrap().name(), "left");
}

/// An issuer of an earlier start, with a later clock, has signed a list that other nodes hold.
#[cfg(feature = "testing")]
#[test]
fn an_issuer_whose_clock_was_set_back_signs_again() {
    let lab = Lab::new("set-back");
    let own = Identity::from_authority(lab.authority.clone()).unwrap();
    let mut signed = None;
    own.add_removed(None, crate::RemovedMembers::new([("0123456789abcdef".to_owned(), u64::MAX)]));
    own.sign_list(&mut signed).unwrap();
    let version = |own: &Identity| own.watch_lists().borrow().values().map(|list| list.version).max().unwrap();
    let first = version(&own);
    own.sign_list(&mut signed).unwrap();
    assert_eq!(version(&own), first, "nothing is new");
    let earlier = own.signed_list(first + 1_000_000, &["0123456789abcdef"]).unwrap();
    assert!(own.take_list(&earlier).unwrap());
    own.sign_list(&mut signed).unwrap();
    assert_eq!(version(&own), first + 1_000_001);
}

/// A later list of an issuer takes the place of its earlier one, and of nothing else.
#[cfg(feature = "testing")]
#[test]
fn each_issuer_contributes_one_list() {
    let lab = Lab::new("contributions");
    let left = issuer(&lab.authority, &lab.directory.join("left"), "left", MONTH).unwrap();
    let [own, left] = [lab.authority.clone(), left].map(|authority| Identity::from_authority(authority).unwrap());
    let [honest, one, other] = ["0123456789abcdef", "fedcba9876543210", "1111111111111111"];
    assert!(own.take_list(&own.signed_list(1, &[honest]).unwrap()).unwrap());
    assert!(own.take_list(&left.signed_list(1, &[one]).unwrap()).unwrap());
    assert!(own.take_list(&left.signed_list(2, &[other]).unwrap()).unwrap());
    let removed = own.watch_removed().borrow().clone();
    assert!(removed.contains(honest) && removed.contains(other) && !removed.contains(one));
}

/// Its name stands for its id, which is unknown.
#[test]
fn a_member_that_was_removed_with_a_damaged_record_gets_no_further_certificate() {
    let (lab, now) = (Lab::new("damaged"), SystemTime::now());
    let key = certificate_request().unwrap().1;
    let before = lab.admit(&lab.token(|_| {}), "third", &key, now).unwrap();
    std::fs::write(lab.directory.join("authority/members/third"), "").unwrap();
    assert!(lab.authority.remove("third").unwrap());
    let renew = |member: &Member| lab.authority.renew(Some(member.clone()), key.as_bytes(), now);
    assert!(matches!(denied(renew(&before)), JoinDenied::RemovedMember(_)));
    let after = lab.admit(&lab.token(|_| {}), "third", &certificate_request().unwrap().1, now).unwrap();
    assert!(renew(&after).is_ok());
    assert!(matches!(denied(renew(&before)), JoinDenied::NameTaken(_)));
    assert_eq!(lab.authority.removed(now).unwrap(), crate::RemovedMembers::default(), "the file is not an id");
}

/// The root of a directory that was made before there were issuers allows no authority below it. Verifiers do not look
/// at the extensions of a root.
#[test]
fn a_root_that_was_made_before_there_were_issuers_signs_issuers() {
    let lab = Lab::new("earlier");
    let (directory, key) = (lab.directory.join("earlier"), rcgen::KeyPair::generate().unwrap());
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "earlier");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    let root = params.self_signed(&key).unwrap();
    let files = [("authority.key", key.serialize_pem()), ("authority.pem", root.pem())];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    crate::files::make_directory(&directory, &files).unwrap();
    let root = Authority::open(&directory).unwrap();
    assert!(root.issuer().unwrap().is_none());
    assert!(issuer(&root, &lab.directory.join("left"), "left", MONTH).is_ok(), "verified with a member of its own");
}
