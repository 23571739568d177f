//! `grpc.reflection.v1` and `v1alpha`: what services there are, and how their messages are declared.

use std::sync::Arc;

use callboard_core::ErrorKind;
use callboard_http::axum::response::Response;
use callboard_http::protocol::RequestContext;
use callboard_oip::parts::shown;
use prost::Message as _;

use crate::descriptor::{FILES, ProtoFile};
use crate::framing::{framed_plain, unreadable};
use crate::proto::reflection::{
    Answered, Asked, ErrorResponse, Extensions, Files, ServerReflectionRequest, ServerReflectionResponse, Service,
    Services,
};
use crate::reader::MessageReader;
use crate::stream;

/// Answers a stream of questions, each in its turn.
pub(crate) fn respond(context: RequestContext<'_>, mut reader: MessageReader) -> Response {
    let life = Arc::clone(context.life);
    let holder = context.key_holder.cloned();
    stream::respond(context, None, None, |outlet| async move {
        // The first question was counted with the stream.
        let mut questions = 0;
        while let Some(message) = life.unless_withdrawn(reader.next()).await?? {
            if let Some(holder) = holder.as_ref().filter(|_| questions > 0) {
                holder.take(1).map_err(|over| over.error)?;
            }
            questions += 1;
            let question = ServerReflectionRequest::decode(message.bytes).map_err(|error| unreadable(&error))?;
            outlet.send(vec![framed_plain(&answer(question).encode_to_vec())]).await;
        }
        Ok(())
    })
}

fn answer(question: ServerReflectionRequest) -> ServerReflectionResponse {
    let with_symbol = |symbol: &str| FILES.iter().find(|file| file.symbols.iter().any(|own| own == symbol));
    let answered = match &question.asked {
        Some(Asked::ListServices(_)) => {
            let names = FILES.iter().flat_map(|file| &file.services);
            Answered::Services(Services { services: names.map(|name| Service { name: name.clone() }).collect() })
        }
        Some(Asked::FileByFilename(name)) => file(FILES.iter().find(|file| file.name == *name), "file", name),
        Some(Asked::FileContainingSymbol(symbol)) => file(with_symbol(symbol), "symbol", symbol),
        Some(Asked::AllExtensionNumbersOfType(name)) if with_symbol(name).is_some() => {
            Answered::Extensions(Extensions { base_type_name: name.clone(), numbers: Vec::new() })
        }
        Some(Asked::AllExtensionNumbersOfType(name)) => file(None, "type", name),
        Some(Asked::FileContainingExtension(_)) => file(None, "extension", "of any type"),
        None => error(ErrorKind::InvalidInput, "the request asks nothing".to_owned()),
    };
    ServerReflectionResponse {
        valid_host: question.host.clone(),
        original_request: Some(question),
        answered: Some(answered),
    }
}

fn file(found: Option<&ProtoFile>, what: &str, name: &str) -> Answered {
    match found {
        Some(file) => Answered::Files(Files { files: vec![file.bytes.clone()] }),
        None => error(ErrorKind::NotFound, format!("there is no {what} `{}`", shown(name))),
    }
}

fn error(kind: ErrorKind, message: String) -> Answered {
    Answered::Error(ErrorResponse { code: kind.row().grpc_status.into(), message })
}
