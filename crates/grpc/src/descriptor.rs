//! The files that describe the services: `proto/services.bin`, made of the `.proto` files beside it by
//! `just protos`. Tests compare it with these files, and with the messages that are declared in Rust.

use std::sync::LazyLock;

use bytes::Bytes;

use crate::wire::{Fields, Malformed};

/// One described file.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProtoFile {
    pub(crate) name: String,
    /// Its `FileDescriptorProto`.
    pub(crate) bytes: Bytes,
    /// Its messages, enumerations, services and methods, each with its package.
    pub(crate) symbols: Vec<String>,
    pub(crate) services: Vec<String>,
}

/// All files. None of them imports another.
pub(crate) static FILES: LazyLock<Vec<ProtoFile>> = LazyLock::new(|| {
    // It is compiled in, and read by the tests.
    read(Bytes::from_static(include_bytes!("../proto/services.bin"))).unwrap_or_default()
});

fn read(set: Bytes) -> Result<Vec<ProtoFile>, Malformed> {
    let mut files = Vec::new();
    for field in Fields::new(set) {
        if let (1, file) = field? {
            files.push(read_file(file.bytes()?)?);
        }
    }
    Ok(files)
}

fn read_file(bytes: Bytes) -> Result<ProtoFile, Malformed> {
    let mut file = ProtoFile { bytes: bytes.clone(), ..ProtoFile::default() };
    let mut package = String::new();
    for field in Fields::new(bytes.clone()) {
        match field? {
            (1, name) => file.name = name.text()?,
            (2, name) => package = name.text()?,
            _ => {}
        }
    }
    for field in Fields::new(bytes) {
        match field? {
            (4, message) => read_message(&package, message.bytes()?, &mut file.symbols)?,
            (5, enumeration) => file.symbols.push(name_of(&package, enumeration.bytes()?)?),
            (6, service) => {
                let service = service.bytes()?;
                let name = name_of(&package, service.clone())?;
                for method in Fields::new(service) {
                    if let (2, method) = method? {
                        file.symbols.push(name_of(&name, method.bytes()?)?);
                    }
                }
                file.symbols.push(name.clone());
                file.services.push(name);
            }
            _ => {}
        }
    }
    Ok(file)
}

/// The names of a message and of what is declared in it. protoc nests only as deep as the files do.
fn read_message(scope: &str, message: Bytes, symbols: &mut Vec<String>) -> Result<(), Malformed> {
    let name = name_of(scope, message.clone())?;
    for field in Fields::new(message) {
        match field? {
            (3, nested) => read_message(&name, nested.bytes()?, symbols)?,
            (4, enumeration) => symbols.push(name_of(&name, enumeration.bytes()?)?),
            _ => {}
        }
    }
    symbols.push(name);
    Ok(())
}

/// The name of a declaration, which is its first field, in its scope.
fn name_of(scope: &str, declaration: Bytes) -> Result<String, Malformed> {
    for field in Fields::new(declaration) {
        if let (1, name) = field? {
            return Ok(format!("{scope}.{}", name.text()?));
        }
    }
    Err(Malformed::new("a declaration has no name"))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use prost::Message;

    use super::*;
    use crate::SERVICES;
    use crate::proto::{config, health, inference, reflection, statistics};
    use crate::wire::FieldValue;

    /// The numbers of the fields of each message, with their types (`FieldDescriptorProto`) and the names of theirs.
    type Declared = BTreeMap<String, BTreeMap<u32, (u64, String)>>;

    fn declared() -> Declared {
        let mut declared = Declared::new();
        for file in FILES.iter() {
            let package = Fields::new(file.bytes.clone()).map(Result::unwrap).find(|(number, _)| *number == 2).unwrap();
            let package = package.1.text().unwrap();
            for (number, value) in Fields::new(file.bytes.clone()).map(Result::unwrap) {
                if number == 4 {
                    declare(&package, value.bytes().unwrap(), &mut declared);
                }
            }
        }
        declared
    }

    fn declare(scope: &str, message: Bytes, declared: &mut Declared) {
        let name = name_of(scope, message.clone()).unwrap();
        let mut fields = BTreeMap::new();
        for (number, value) in Fields::new(message).map(Result::unwrap) {
            match number {
                2 => {
                    let (mut tag, mut kind, mut of) = (0, 0, String::new());
                    for (number, value) in Fields::new(value.bytes().unwrap()).map(Result::unwrap) {
                        match (number, value) {
                            (3, FieldValue::Varint(number)) => tag = number as u32,
                            (5, FieldValue::Varint(number)) => kind = number,
                            (6, value) => of = value.text().unwrap().trim_start_matches('.').to_owned(),
                            _ => {}
                        }
                    }
                    fields.insert(tag, (kind, of));
                }
                3 => declare(&name, value.bytes().unwrap(), declared),
                _ => {}
            }
        }
        declared.insert(name, fields);
    }

    /// Checks that a message with all of its fields has exactly those of its declaration, of one choice one at least.
    fn compare(declared: &Declared, name: &str, message: &[u8], choices: &[u32]) {
        let fields = &declared[name];
        let mut seen = Vec::new();
        for (number, value) in Fields::new(Bytes::copy_from_slice(message)).map(Result::unwrap) {
            let (kind, of) = fields.get(&number).unwrap_or_else(|| panic!("{name} has no field {number}"));
            match (kind, value) {
                (1, FieldValue::Fixed64(_)) | (2, FieldValue::Fixed32(_)) => {}
                // Numbers, flags and variants; several of them are packed.
                (3 | 4 | 5 | 8 | 13 | 14, FieldValue::Varint(_) | FieldValue::Bytes(_)) => {}
                (1 | 2 | 9 | 12, FieldValue::Bytes(_)) => {}
                (11, FieldValue::Bytes(bytes)) if !bytes.is_empty() && !of.ends_with("Entry") => {
                    compare(declared, of, &bytes, &CHOICES);
                }
                (11, FieldValue::Bytes(_)) => {}
                (kind, value) => panic!("{name}.{number} of type {kind} is {value:?}"),
            }
            seen.push(number);
        }
        let missing: Vec<&u32> = fields.keys().filter(|number| !seen.contains(number)).collect();
        assert!(missing.iter().all(|number| choices.contains(number)), "{name} lacks {missing:?}");
    }

    /// Fields of which a message has one, and recursive messages.
    const CHOICES: [u32; 5] = [1, 2, 3, 4, 5];

    #[test]
    fn the_descriptor_has_the_services_and_no_others() {
        let services: Vec<String> = FILES.iter().flat_map(|file| file.services.clone()).collect();
        let mut own: Vec<&str> = SERVICES.iter().filter_map(|path| path.strip_prefix('/')).collect();
        own.sort_unstable();
        let mut described: Vec<&str> = services.iter().map(String::as_str).collect();
        described.sort_unstable();
        assert_eq!(described, own);
    }

    fn fields(message: &Bytes) -> impl Iterator<Item = (u32, FieldValue)> + use<> {
        Fields::new(message.clone()).map(Result::unwrap)
    }

    fn parts(message: &Bytes, wanted: u32) -> impl Iterator<Item = Bytes> + use<> {
        fields(message).filter(move |(number, _)| *number == wanted).map(|(_, part)| part.bytes().unwrap())
    }

    fn text(message: &Bytes, wanted: u32) -> String {
        parts(message, wanted).next().map_or_else(String::new, |text| String::from_utf8(text.into()).unwrap())
    }

    fn number(message: &Bytes, wanted: u32) -> Option<u64> {
        fields(message).find_map(|(number, value)| match value {
            FieldValue::Varint(value) if number == wanted => Some(value),
            _ => None,
        })
    }

    /// `name=number` of each field and variant, but those of entries of maps.
    fn numbered(message: &Bytes, found: &mut Vec<String>) {
        if text(message, 1).ends_with("Entry") {
            return;
        }
        found.extend(parts(message, 2).map(|field| format!("{}={}", text(&field, 1), number(&field, 3).unwrap())));
        parts(message, 3).for_each(|nested| numbered(&nested, found));
        parts(message, 4).for_each(|variants| variants_of(&variants, found));
    }

    fn variants_of(variants: &Bytes, found: &mut Vec<String>) {
        found.extend(
            parts(variants, 2).map(|variant| format!("{}={}", text(&variant, 1), number(&variant, 2).unwrap())),
        );
    }

    /// What a service has: `rpcName(Input)returns(streamOutput)`.
    fn method(method: &Bytes) -> String {
        let of = |name, is_stream| {
            let stream = if number(method, is_stream) == Some(1) { "stream" } else { "" };
            format!("({stream}{})", text(method, name).rsplit('.').next().unwrap())
        };
        format!("rpc{}{}returns{}", text(method, 1), of(2, 5), of(3, 6))
    }

    #[test]
    fn the_descriptor_is_made_of_the_files() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        assert_eq!(files.filter(|path| path.extension().is_some_and(|of| of == "proto")).count(), FILES.len());
        for file in FILES.iter() {
            let mut described = Vec::new();
            parts(&file.bytes, 4).for_each(|message| numbered(&message, &mut described));
            parts(&file.bytes, 5).for_each(|variants| variants_of(&variants, &mut described));
            described.extend(parts(&file.bytes, 6).flat_map(|service| parts(&service, 2)).map(|of| method(&of)));
            let source = std::fs::read_to_string(folder.join(&file.name)).unwrap();
            let code: String = source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
            let mut written = Vec::new();
            for statement in code.split([';', '{', '}']).map(str::trim) {
                if statement.starts_with("rpc ") {
                    written.push(statement.split_whitespace().collect());
                } else if let Some((declared, number)) = statement.split_once('=')
                    && let Some(number) = number.split_whitespace().next().and_then(|word| word.parse::<u64>().ok())
                {
                    written.push(format!("{}={number}", declared.split_whitespace().next_back().unwrap()));
                }
            }
            written.sort_unstable();
            described.sort_unstable();
            assert!(!written.is_empty());
            assert_eq!(written, described, "{}: run `just protos`", file.name);
        }
    }

    #[test]
    fn declared_messages_are_those_of_the_descriptor() {
        let declared = declared();
        let text = || "x".to_owned();
        let parameter =
            inference::InferParameter { parameter_choice: Some(inference::ParameterChoice::Uint64Param(7)) };
        let parameters = HashMap::from([(text(), parameter)]);
        let contents = inference::InferTensorContents {
            bool_contents: vec![true],
            int_contents: vec![1],
            int64_contents: vec![1],
            uint_contents: vec![1],
            uint64_contents: vec![1],
            fp32_contents: vec![1.0],
            fp64_contents: vec![1.0],
            bytes_contents: vec![Bytes::from_static(b"x")],
        };
        let tensor = inference::InferTensor {
            name: text(),
            datatype: text(),
            shape: vec![1],
            parameters: parameters.clone(),
            contents: Some(contents),
        };
        let answer = inference::ModelInferResponse {
            model_name: text(),
            model_version: text(),
            id: text(),
            parameters,
            outputs: vec![tensor],
            raw_output_contents: vec![Bytes::from_static(b"x")],
        };
        let described = inference::TensorMetadata { name: text(), datatype: text(), shape: vec![1] };
        let duration = Some(statistics::StatisticDuration { count: 1, ns: 1 });
        let messages: Vec<(&str, Vec<u8>)> = vec![
            ("inference.ServerLiveResponse", inference::ServerLiveResponse { live: true }.encode_to_vec()),
            ("inference.ServerReadyResponse", inference::ReadyResponse { ready: true }.encode_to_vec()),
            ("inference.ModelReadyResponse", inference::ReadyResponse { ready: true }.encode_to_vec()),
            ("inference.ModelReadyRequest", inference::ModelRequest { name: text(), version: text() }.encode_to_vec()),
            (
                "inference.ServerMetadataResponse",
                inference::ServerMetadataResponse { name: text(), version: text(), extensions: vec![text()] }
                    .encode_to_vec(),
            ),
            (
                "inference.ModelMetadataResponse",
                inference::ModelMetadataResponse {
                    name: text(),
                    versions: vec![text()],
                    platform: text(),
                    inputs: vec![described.clone()],
                    outputs: vec![described],
                }
                .encode_to_vec(),
            ),
            (
                "inference.ModelStreamInferResponse",
                inference::ModelStreamInferResponse { error_message: text(), infer_response: Some(answer) }
                    .encode_to_vec(),
            ),
            (
                "inference.ModelConfig",
                config::ModelConfig {
                    name: text(),
                    platform: text(),
                    version_policy: Some(config::ModelVersionPolicy {
                        latest: Some(config::LatestVersions { num_versions: 1 }),
                    }),
                    max_batch_size: 1,
                    input: vec![config::ModelInput { name: text(), data_type: 1, dims: vec![1] }],
                    output: vec![config::ModelOutput { name: text(), data_type: 1, dims: vec![1] }],
                    instance_group: vec![config::ModelInstanceGroup { name: text(), count: 1, kind: 2 }],
                    dynamic_batching: Some(config::ModelDynamicBatching { preferred_batch_size: vec![1] }),
                    backend: text(),
                    model_transaction_policy: Some(config::ModelTransactionPolicy { decoupled: true }),
                }
                .encode_to_vec(),
            ),
            (
                "inference.ModelStatistics",
                statistics::ModelStatistics {
                    name: text(),
                    version: text(),
                    last_inference: 1,
                    inference_count: 1,
                    execution_count: 1,
                    inference_stats: Some(statistics::InferStatistics {
                        success: duration.clone(),
                        fail: duration.clone(),
                        queue: duration.clone(),
                        compute_input: duration.clone(),
                        compute_infer: duration.clone(),
                        compute_output: duration.clone(),
                        cache_hit: duration.clone(),
                        cache_miss: duration,
                    }),
                    batch_stats: vec![statistics::InferBatchStatistics {}],
                    memory_usage: vec![statistics::MemoryUsage {}],
                    response_stats: HashMap::from([(text(), statistics::InferResponseStatistics {})]),
                }
                .encode_to_vec(),
            ),
            (
                "inference.RepositoryIndexResponse",
                inference::RepositoryIndexResponse {
                    models: vec![inference::ModelIndex {
                        name: text(),
                        version: text(),
                        state: text(),
                        reason: text(),
                    }],
                }
                .encode_to_vec(),
            ),
            (
                "inference.RepositoryModelLoadResponse",
                inference::RepositoryChangeResponse { model_name: text(), is_done: true }.encode_to_vec(),
            ),
            ("grpc.health.v1.HealthCheckRequest", health::HealthCheckRequest { service: text() }.encode_to_vec()),
            ("grpc.health.v1.HealthCheckResponse", health::HealthCheckResponse { status: 1 }.encode_to_vec()),
            (
                "grpc.reflection.v1.ListServiceResponse",
                reflection::Services { services: vec![reflection::Service { name: text() }] }.encode_to_vec(),
            ),
            (
                "grpc.reflection.v1alpha.ErrorResponse",
                reflection::ErrorResponse { code: 5, message: text() }.encode_to_vec(),
            ),
        ];
        for (name, message) in messages {
            compare(&declared, name, &message, &[]);
        }
    }
}
