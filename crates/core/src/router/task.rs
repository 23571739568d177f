//! What a route does, in the words of the APIs of models.

use std::fmt;

/// The task of a route: how the clients of model APIs, such as OpenAI's, call it. A route without one is called by its
/// own schema only.
///
/// ```
/// use callboard_core::{RouteSpec, Stage, Task};
///
/// let length = Stage::each("length", |text: &String| Ok(vec![text.len() as f64]));
/// let route = RouteSpec::new("/length", length).task(Task::Embed);
/// assert_eq!("embed".parse(), Ok(Task::Embed));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Task {
    /// Messages to the next message.
    Chat,
    /// The beginning of a text to its continuation.
    Complete,
    /// A text, or a list of token ids, to a vector.
    Embed,
    /// A query and a document to the document's score.
    Rerank,
    /// A text to what is wrong with it.
    Moderate,
}

impl Task {
    /// All tasks.
    pub const ALL: [Self; 5] = [Self::Chat, Self::Complete, Self::Embed, Self::Rerank, Self::Moderate];

    /// Its word in configuration and in Python.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Complete => "complete",
            Self::Embed => "embed",
            Self::Rerank => "rerank",
            Self::Moderate => "moderate",
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Task {
    type Err = UnknownTask;

    fn from_str(word: &str) -> Result<Self, UnknownTask> {
        Self::ALL.into_iter().find(|task| task.as_str() == word).ok_or(UnknownTask)
    }
}

/// A word that is no [`Task`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be one of chat, complete, embed, rerank, moderate")]
pub struct UnknownTask;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_read_as_its_task_and_named_in_the_error() {
        for task in Task::ALL {
            assert_eq!(task.as_str().parse(), Ok(task));
            assert!(UnknownTask.to_string().contains(task.as_str()), "{task}");
        }
        assert_eq!("Chat".parse::<Task>(), Err(UnknownTask));
    }
}
