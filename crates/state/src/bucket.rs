//! A store that nodes share: the objects of a bucket, in S3 or what speaks as S3 does, by conditional writes.
//!
//! A record is one object. Each write names the object that it replaces by its tag, so of two writers one is told that
//! it is late. A removed record leaves an object of some bytes: nothing else could keep the epochs of its key rising.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use callboard_core::keyed::{Fence, StateKey, StateStore, StoreError, StoreFuture, StoredState};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, PutMode, PutOptions, PutPayload, UpdateVersion};

/// How long an operation may take: as the load of a key. The client may try again within it.
const WITHIN: Duration = Duration::from_secs(10);

/// The largest object that is read or written. Threat: an object written by others that fills the memory.
const MAX_OBJECT_BYTES: u64 = 1 << 30;

/// The most writes of one operation. A further one fails: others write the same key all the time.
const ATTEMPTS: usize = 16;

/// The first byte of an object.
const FORMAT: u8 = 1;

/// Keeps the state of keyed actors in a bucket, which all nodes of a cluster use. The bucket is a client of the crate
/// `object_store`: of S3 or of what speaks as S3 does, if it keeps conditional writes (`If-Match`, `If-None-Match`), of
/// Azure or of Google Cloud. A file system does not.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
///
/// use callboard_core::keyed::{StateKey, StateStore};
/// use callboard_state::BucketStore;
/// use callboard_state::object_store::memory::InMemory;
///
/// // `AmazonS3Builder::from_env().with_bucket_name("states").build()?` with its feature `aws`.
/// let bucket = Arc::new(InMemory::new());
/// let store = BucketStore::new(bucket, "production");
/// let ann = StateKey { kind: "cart", key: "ann" };
/// assert_eq!(store.claim(ann, "this node").await?.epoch, 1);
/// # Ok(())
/// # }
/// ```
///
/// Each operation reads the object, and all but a load write it then: a save costs two requests and the state twice.
/// An operation has 10 s.
#[derive(Clone)]
pub struct BucketStore {
    bucket: Arc<dyn ObjectStore>,
    directory: Path,
    /// The bytes of an object.
    max_bytes: u64,
}

/// A record as an object has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Object {
    record: StoredState,
    is_removed: bool,
}

impl BucketStore {
    /// A store in `directory` of the bucket, such as `production/carts`. The names of its objects have at most 840
    /// bytes beside that.
    #[must_use]
    pub fn new(bucket: Arc<dyn ObjectStore>, directory: &str) -> Self {
        Self { bucket, directory: Path::from(directory), max_bytes: MAX_OBJECT_BYTES }
    }

    fn path_of(&self, key: StateKey<'_>) -> Path {
        self.directory.clone().join(segment(key.kind)).join(segment(key.key))
    }

    /// The object, and what names it in a write.
    async fn read(&self, path: &Path) -> Result<(Object, PutMode), StoreError> {
        let found = match self.bucket.get_opts(path, GetOptions::default()).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => {
                return Ok((Object { is_removed: true, ..Object::default() }, PutMode::Create));
            }
            Err(error) => return Err(failed(&error)),
        };
        self.check_size(path, found.meta.size)?;
        let (e_tag, version) = (found.meta.e_tag.clone(), found.meta.version.clone());
        let bytes = found.bytes().await.map_err(|error| failed(&error))?;
        let object = Object::read(&bytes).ok_or_else(|| StoreError::Failed(format!("{path} is no record")))?;
        Ok((object, PutMode::Update(UpdateVersion { e_tag, version })))
    }

    /// Refuses an object before it is read or written.
    fn check_size(&self, path: &Path, bytes: u64) -> Result<(), StoreError> {
        if bytes <= self.max_bytes {
            return Ok(());
        }
        Err(StoreError::Failed(format!("{path} has {bytes} bytes, more than {}", self.max_bytes)))
    }

    /// False: another write came first.
    async fn write(&self, path: &Path, object: &Object, mode: PutMode) -> Result<bool, StoreError> {
        let bytes = object.write();
        self.check_size(path, bytes.len() as u64)?;
        let payload = PutPayload::from(bytes);
        match self.bucket.put_opts(path, payload, PutOptions::from(mode)).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Writes what `change` makes of the record, again until no other write comes first. `is_fenced`: nobody else
    /// writes the same, so what is there already is its own: the client was not answered, and has tried again.
    async fn update(
        &self,
        key: StateKey<'_>,
        is_fenced: bool,
        change: impl Fn(&Object) -> Result<Object, StoreError>,
    ) -> Result<StoredState, StoreError> {
        let path = self.path_of(key);
        let mut written: Option<Object> = None;
        for _ in 0..ATTEMPTS {
            let (object, mode) = self.read(&path).await?;
            if is_fenced && written.as_ref() == Some(&object) {
                return Ok(object.record);
            }
            let object = change(&object)?;
            if self.write(&path, &object, mode).await? {
                return Ok(object.record);
            }
            written = Some(object);
        }
        Err(StoreError::Failed(format!("{path} is written by others all the time")))
    }
}

/// A name as a segment of a path: itself, or in Base64, which has a dot then.
fn segment(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !name.is_empty() && name.bytes().all(is_plain) {
        return name.to_owned();
    }
    format!("{}.b64", URL_SAFE_NO_PAD.encode(name))
}

impl Object {
    fn write(&self) -> Bytes {
        let Self { record: StoredState { epoch, version, state, owner }, is_removed } = self;
        // Names of nodes are short.
        let owner = &owner.as_bytes()[..owner.len().min(usize::from(u16::MAX))];
        let length = 20 + owner.len() + state.as_ref().map_or(0, Bytes::len);
        let mut bytes = BytesMut::with_capacity(length);
        bytes.put_u8(FORMAT);
        bytes.put_u8(u8::from(state.is_some()) | u8::from(*is_removed) << 1);
        bytes.put_u64(*epoch);
        bytes.put_u64(*version);
        bytes.put_u16(owner.len() as u16);
        bytes.put_slice(owner);
        bytes.put_slice(state.as_deref().unwrap_or_default());
        bytes.freeze()
    }

    fn read(bytes: &Bytes) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<20>()?;
        let [FORMAT, flags, numbers @ ..] = head else { return None };
        let number = |at: usize| Some(u64::from_be_bytes(numbers.get(at..at + 8)?.try_into().ok()?));
        let owner = usize::from(u16::from_be_bytes([numbers[16], numbers[17]]));
        let owner_text = std::str::from_utf8(rest.get(..owner)?).ok()?.to_owned();
        let state = (flags & 1 != 0).then(|| bytes.slice(20 + owner..));
        let record = StoredState { epoch: number(0)?, version: number(8)?, state, owner: owner_text };
        Some(Self { record, is_removed: flags & 2 != 0 })
    }

    /// The record, if it has this epoch and version.
    fn fenced(&self, fence: Fence) -> Result<&StoredState, StoreError> {
        let Self { record, is_removed } = self;
        let is_same = (record.epoch, record.version) == (fence.epoch, fence.version);
        if is_same && !is_removed { Ok(record) } else { Err(StoreError::Conflict) }
    }
}

fn failed(error: &Error) -> StoreError {
    StoreError::Failed(error.to_string())
}

/// The number that follows one in an object, which others can write.
fn next_number(number: u64) -> Result<u64, StoreError> {
    number.checked_add(1).ok_or_else(|| StoreError::Failed(format!("no number follows {number}")))
}

async fn within<T>(operation: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| StoreError::Failed(format!("no answer within {WITHIN:?}"));
    tokio::time::timeout(WITHIN, operation).await.map_err(late)?
}

impl StateStore for BucketStore {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        Box::pin(within(self.update(key, false, move |Object { record, is_removed }| {
            let record = if *is_removed {
                StoredState { epoch: record.epoch, ..StoredState::default() }
            } else {
                record.clone()
            };
            let record = StoredState { epoch: next_number(record.epoch)?, owner: owner.to_owned(), ..record };
            Ok(Object { record, is_removed: false })
        })))
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        Box::pin(within(async move {
            let (object, _) = self.read(&self.path_of(key)).await?;
            Ok((!object.is_removed).then_some(object.record))
        }))
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: Bytes) -> StoreFuture<'a, u64> {
        Box::pin(within(async move {
            let saved = self.update(key, true, |object| {
                let record = StoredState {
                    version: next_number(fence.version)?,
                    state: Some(state.clone()),
                    ..object.fenced(fence)?.clone()
                };
                Ok(Object { record, is_removed: false })
            });
            Ok(saved.await?.version)
        }))
    }

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        Box::pin(within(async move {
            let removed = self.update(key, true, |object| {
                let epoch = object.fenced(fence)?.epoch;
                Ok(Object { record: StoredState { epoch, ..StoredState::default() }, is_removed: true })
            });
            removed.await.map(drop)
        }))
    }

    fn is_local(&self) -> bool {
        false
    }
}

impl fmt::Debug for BucketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The bucket may have credentials.
        f.debug_struct("BucketStore").field("directory", &self.directory).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_read_as_it_was_written_and_other_bytes_are_none() {
        let record = StoredState { epoch: 7, version: u64::MAX, state: Some("tea".into()), owner: "left".to_owned() };
        for record in
            [record, StoredState::default(), StoredState { state: Some(Bytes::new()), ..StoredState::default() }]
        {
            for is_removed in [false, true] {
                let object = Object { record: record.clone(), is_removed };
                let bytes = object.write();
                assert_eq!(Object::read(&bytes), Some(object));
                for end in 0..20 {
                    assert_eq!(Object::read(&bytes.slice(..end)), None);
                }
            }
        }
        for other in ["", "{}", "\u{1}234567890123456789\u{7f}\u{7f}", "\u{2}234567890123456789"] {
            assert_eq!(Object::read(&Bytes::from_static(other.as_bytes())), None, "{other}");
        }
    }

    #[tokio::test]
    async fn numbers_and_sizes_that_no_store_writes_are_errors() {
        let bucket = Arc::new(object_store::memory::InMemory::new());
        let store = BucketStore::new(bucket, "states");
        let key = StateKey { kind: "cart", key: "ann" };
        let put = async |epoch, version| {
            let record = StoredState { epoch, version, ..StoredState::default() };
            let payload = PutPayload::from(Object { record, is_removed: false }.write());
            store.bucket.put_opts(&store.path_of(key), payload, PutOptions::default()).await.unwrap();
        };
        let reason = |error: StoreError| error.to_string();
        put(u64::MAX, 0).await;
        assert!(reason(store.claim(key, "a").await.unwrap_err()).contains("no number follows"));
        put(7, u64::MAX).await;
        let fence = Fence { epoch: 7, version: u64::MAX };
        let saved = store.save(key, fence, Bytes::new()).await;
        assert!(reason(saved.unwrap_err()).contains("no number follows"));
    }

    #[tokio::test]
    async fn an_object_that_is_too_large_is_neither_read_nor_written() {
        let store = BucketStore::new(Arc::new(object_store::memory::InMemory::new()), "states");
        let small = BucketStore { max_bytes: 100, ..store.clone() };
        let key = StateKey { kind: "cart", key: "ann" };
        let refused = |error: StoreError| error.to_string().ends_with(" bytes, more than 100");
        let state = |bytes: usize| Bytes::from(vec![7; bytes]);
        let StoredState { epoch, version, .. } = small.claim(key, "a").await.unwrap();
        let fence = Fence { epoch, version };
        // The owner and the numbers have 21 bytes.
        assert!(refused(small.save(key, fence, state(80)).await.unwrap_err()));
        let version = small.save(key, fence, state(79)).await.unwrap();
        assert_eq!(small.load(key).await.unwrap().unwrap().state, Some(state(79)), "what was refused changed nothing");
        store.save(key, Fence { epoch, version }, state(80)).await.unwrap();
        assert!(refused(small.load(key).await.unwrap_err()) && refused(small.claim(key, "b").await.unwrap_err()));
    }

    #[test]
    fn names_are_segments_of_their_own() {
        let names = ["", "a", "A", "a.b64", "YQ", "..", "/", "a/b", "\u{e4}", "a_b-c", "%2F"];
        let mut segments: Vec<String> = names.iter().map(|name| segment(name)).collect();
        assert_eq!(segments[1], "a");
        segments.sort_unstable();
        segments.dedup();
        assert_eq!(segments.len(), names.len(), "{segments:?}");
        let parsed = segments.iter().all(|segment| Path::parse(segment).is_ok());
        assert!(parsed, "{segments:?}");
    }
}
