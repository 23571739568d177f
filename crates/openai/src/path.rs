//! The endpoint of a path under `/v1`. Pure.

use callboard_core::Task;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Endpoint<'p> {
    /// `/v1/models`.
    Models,
    /// `/v1/models/{id}`, as it was sent.
    Model(&'p str),
    /// One that calls a route of this task.
    Call(Task),
    /// `/v1/responses`, which calls a route that chats.
    Responses,
    /// `/v1/audio/translations`, which calls a route that transcribes.
    Translations,
    /// Part of the API, and not offered here.
    Missing(&'static str),
    /// No endpoint.
    Unknown,
}

/// Where clients that know no version rank documents, if no route has the path.
pub(crate) const RERANK: &str = "/rerank";

/// The endpoint of responses.
pub(crate) const RESPONSES: &str = "/v1/responses";

/// The paths that belong to the API, each with all below.
pub(crate) const PATHS: [&str; 12] = [
    "/v1/models",
    "/v1/chat",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/moderations",
    RESPONSES,
    "/v1/audio",
    "/v1/images",
    "/v1/files",
    "/v1/batches",
    "/v1/fine_tuning",
];

impl<'p> Endpoint<'p> {
    pub(crate) fn parse(path: &'p str) -> Self {
        match path {
            "/v1/models" => Self::Models,
            "/v1/chat/completions" => Self::Call(Task::Chat),
            "/v1/completions" => Self::Call(Task::Complete),
            "/v1/embeddings" => Self::Call(Task::Embed),
            "/v1/rerank" | RERANK => Self::Call(Task::Rerank),
            "/v1/moderations" => Self::Call(Task::Moderate),
            RESPONSES => Self::Responses,
            "/v1/audio/transcriptions" => Self::Call(Task::Transcribe),
            "/v1/audio/translations" => Self::Translations,
            "/v1/audio/speech" => Self::Call(Task::Speak),
            "/v1/images/generations" => Self::Call(Task::Image),
            _ => match path.strip_prefix("/v1/models/").filter(|id| !id.is_empty()) {
                Some(id) => Self::Model(id),
                None => missing(path).map_or(Self::Unknown, Self::Missing),
            },
        }
    }
}

fn missing(path: &str) -> Option<&'static str> {
    let (name, _) = path.strip_prefix("/v1/")?.split_once('/').unwrap_or((path.strip_prefix("/v1/")?, ""));
    Some(match name {
        "responses" => "responses that are kept: each answer is sent once",
        "audio" => "other audio endpoints: transcriptions, translations and speech are offered",
        "images" => "edits and variations of images: generations are offered",
        "files" => "files",
        "batches" => "batches",
        "fine_tuning" => "fine-tuning",
        _ => return None,
    })
}

/// The endpoint of a task.
pub(crate) fn path_of(task: Task) -> &'static str {
    match task {
        Task::Chat => "/v1/chat/completions",
        Task::Complete => "/v1/completions",
        Task::Embed => "/v1/embeddings",
        Task::Rerank => "/v1/rerank",
        Task::Moderate => "/v1/moderations",
        Task::Transcribe => "/v1/audio/transcriptions",
        Task::Speak => "/v1/audio/speech",
        Task::Image => "/v1/images/generations",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_has_its_endpoint() {
        for task in Task::ALL {
            assert_eq!(Endpoint::parse(path_of(task)), Endpoint::Call(task));
        }
    }

    #[test]
    fn every_path_of_the_api_is_claimed() {
        for (path, endpoint) in [
            ("/v1/models", Endpoint::Models),
            ("/v1/models/a/b", Endpoint::Model("a/b")),
            ("/v1/models/", Endpoint::Unknown),
            ("/v1/chat", Endpoint::Unknown),
            ("/v1/images/generations", Endpoint::Call(Task::Image)),
            ("/v1/images/edits", Endpoint::Missing("edits and variations of images: generations are offered")),
            ("/v1/audio/translations", Endpoint::Translations),
            (
                "/v1/audio/voices",
                Endpoint::Missing("other audio endpoints: transcriptions, translations and speech are offered"),
            ),
            ("/v1/files", Endpoint::Missing("files")),
            ("/v1/responses", Endpoint::Responses),
            ("/v1/responses/resp_1", Endpoint::Missing("responses that are kept: each answer is sent once")),
        ] {
            assert_eq!(Endpoint::parse(path), endpoint, "{path}");
            assert!(PATHS.iter().any(|claimed| path.starts_with(claimed)), "{path}");
        }
    }
}
