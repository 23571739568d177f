//! The items of a response: a message for the text, and an item for each call of a function. Pure.

use serde_json::{Value as Json, json};

use crate::parts::Part;
use crate::reply::Usage;

/// An item of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Text(String),
    Call { id: String, name: String, arguments: String },
}

/// One change of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An item begins, empty; a call with its id and name.
    Begin(Item),
    /// More of the open item: of its text, or of its arguments.
    More { is_text: bool, more: String },
    /// The open item is complete: all of it.
    Done(Item),
}

impl Step {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Begin(item) | Self::Done(item) => item.len(),
            Self::More { more, .. } => more.len(),
        }
    }

    /// The bytes of its texts in the events that it becomes.
    pub(super) fn written_len(&self) -> usize {
        match self {
            Self::Begin(item) => item.len(),
            Self::More { more, .. } => more.len(),
            // As a text, in its part, and in its item.
            Self::Done(item) => 3 * item.len(),
        }
    }
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Call { id, name, arguments } => id.len() + name.len() + arguments.len(),
        }
    }

    /// The item at this place of the response of this id.
    pub(super) fn json(&self, response: &str, index: usize, status: &str) -> Json {
        let id = self.id(response, index);
        match self {
            Self::Text(text) => {
                // An item that has begun has no part yet.
                let content = if status == "in_progress" { Vec::new() } else { vec![text_part(text)] };
                json!({ "id": id, "type": "message", "role": "assistant", "status": status, "content": content })
            }
            Self::Call { id: call, name, arguments } => json!({
                "id": id, "type": "function_call", "call_id": call, "name": name, "arguments": arguments,
                "status": status,
            }),
        }
    }

    fn id(&self, response: &str, index: usize) -> String {
        id_of(matches!(self, Self::Text(_)), response, index)
    }
}

/// The id of an item.
pub(super) fn id_of(is_text: bool, response: &str, index: usize) -> String {
    format!("{}_{response}_{index}", if is_text { "msg" } else { "fc" })
}

pub(super) fn text_part(text: &str) -> Json {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// The output until now.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) items: Vec<Item>,
    is_open: bool,
}

impl Output {
    /// Adds a part.
    pub(super) fn add(&mut self, part: Part, steps: &mut Vec<Step>) {
        match part {
            Part::Text(more) => {
                let open = if self.is_open { self.items.last_mut() } else { None };
                if let Some(Item::Text(text)) = open {
                    text.push_str(&more);
                } else {
                    self.begin(Item::Text(String::new()), Item::Text(more.clone()), steps);
                }
                steps.push(Step::More { is_text: true, more });
            }
            Part::Call { id, name } => {
                let call = Item::Call { id, name, arguments: String::new() };
                self.begin(call.clone(), call, steps);
            }
            Part::Arguments(more) => {
                if let (true, Some(Item::Call { arguments, .. })) = (self.is_open, self.items.last_mut()) {
                    arguments.push_str(&more);
                    steps.push(Step::More { is_text: false, more });
                }
            }
        }
    }

    fn begin(&mut self, empty: Item, item: Item, steps: &mut Vec<Step>) {
        self.close(steps);
        self.is_open = true;
        self.items.push(item);
        steps.push(Step::Begin(empty));
    }

    /// Ends the open item, if there is one.
    pub(super) fn close(&mut self, steps: &mut Vec<Step>) {
        if std::mem::take(&mut self.is_open) {
            steps.extend(self.items.last().cloned().map(Step::Done));
        }
    }

    /// The bytes of all items.
    pub(super) fn bytes(&self) -> usize {
        self.items.iter().map(|item| size_of::<Item>() + item.len()).sum()
    }
}

/// What a response is, besides its output.
#[derive(Clone, Debug)]
pub(super) struct ResponseHead {
    /// The id of the request.
    pub(super) id: String,
    pub(super) model: String,
    pub(super) created: u64,
}

/// The state of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status<'a> {
    InProgress,
    Completed,
    /// The reason why it is cut.
    Incomplete(&'a str),
    Failed,
}

impl<'a> Status<'a> {
    /// By the reason of the end of a choice.
    pub(super) fn of_end(reason: &'a str) -> Self {
        match reason {
            "length" => Self::Incomplete("max_output_tokens"),
            "content_filter" => Self::Incomplete("content_filter"),
            _ => Self::Completed,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
            Self::Failed => "failed",
        }
    }
}

impl ResponseHead {
    /// The response with this output. Of a cut one the last item is cut.
    pub(super) fn json(&self, status: Status<'_>, items: &[Item], usage: Usage, error: Option<Json>) -> Json {
        let output = items.iter().enumerate().map(|(index, item)| {
            let is_cut = !matches!(status, Status::Completed) && index + 1 == items.len();
            item.json(&self.id, index, if is_cut { "incomplete" } else { "completed" })
        });
        let reason = match status {
            Status::Incomplete(reason) => json!({ "reason": reason }),
            _ => Json::Null,
        };
        json!({
            "id": self.response_id(),
            "object": "response",
            "created_at": self.created,
            "status": status.as_str(),
            "model": self.model,
            "output": output.collect::<Vec<_>>(),
            "error": error,
            "incomplete_details": reason,
            "usage": usage.is_known().then(|| usage_json(usage)),
            "store": false,
            "background": false,
            "previous_response_id": null,
            // Clients demand these; a response does not repeat its request.
            "instructions": null,
            "metadata": {},
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": true,
        })
    }

    pub(super) fn response_id(&self) -> String {
        format!("resp_{}", self.id)
    }
}

fn usage_json(usage: Usage) -> Json {
    let (input, output) = (usage.prompt_tokens.unwrap_or(0), usage.completion_tokens.unwrap_or(0));
    json!({
        "input_tokens": input,
        "input_tokens_details": { "cached_tokens": 0, "cache_write_tokens": 0 },
        "output_tokens": output,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": input.saturating_add(output),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part() -> impl Strategy<Value = Part> {
        prop_oneof![
            "[a-c]{1,3}".prop_map(Part::Text),
            "[a-c]".prop_map(|name| Part::Call { id: name.clone(), name }),
            "[a-c]{1,3}".prop_map(Part::Arguments),
        ]
    }

    proptest! {
        /// A client that applies the steps has the items; each begins once and is complete once.
        #[test]
        fn steps_build_the_output(parts in prop::collection::vec(part(), 0..20)) {
            let (mut output, mut steps) = (Output::default(), Vec::new());
            for part in parts {
                output.add(part, &mut steps);
            }
            output.close(&mut steps);
            let (mut built, mut is_open) = (Vec::new(), false);
            for step in steps {
                match step {
                    Step::Begin(item) => {
                        prop_assert!(!is_open);
                        is_open = true;
                        built.push(item);
                    }
                    Step::More { more, is_text } => {
                        prop_assert!(is_open);
                        match built.last_mut() {
                            Some(Item::Text(text)) if is_text => text.push_str(&more),
                            Some(Item::Call { arguments, .. }) if !is_text => arguments.push_str(&more),
                            _ => prop_assert!(false),
                        }
                    }
                    Step::Done(item) => {
                        prop_assert!(std::mem::take(&mut is_open));
                        prop_assert_eq!(Some(&item), built.last());
                    }
                }
            }
            prop_assert!(!is_open);
            prop_assert_eq!(built, output.items);
        }
    }
}
