//! What a route does, in the words of the APIs of models.

callboard_codec::words! {
    /// The task of a route: how the clients of model APIs, such as OpenAI's, call it. A route without one is called by
    /// its own schema only.
    ///
    /// ```
    /// use callboard_core::{RouteSpec, Stage, Task};
    ///
    /// let length = Stage::each("length", |text: &String| Ok(vec![text.len() as f64]));
    /// let route = RouteSpec::new("/length", length).task(Task::Embed);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Task {
        /// Messages to the next message.
        Chat => "chat",
        /// The beginning of a text to its continuation.
        Complete => "complete",
        /// A text, or a list of token ids, to a vector.
        Embed => "embed",
        /// A query and a document to the document's score.
        Rerank => "rerank",
        /// A text to what is wrong with it.
        Moderate => "moderate",
        /// A recording to its text.
        Transcribe => "transcribe",
        /// A text to a recording of it.
        Speak => "speak",
        /// A text to a picture of it.
        Image => "image",
    }
}
