//! The settings of a stage as methods: of [`Stage`] alone, and common to it and [`StreamStage`](super::StreamStage).

use super::settings::at_least_one;
use super::{CacheSettings, Placement, Stage};

/// Name, settings and the setters that have one meaning for both kinds of stages.
macro_rules! common_setters {
    ($stage:ident) => {
        impl<In, Out> $stage<In, Out> {
            pub(crate) fn from_spec(spec: StageSpec) -> Self {
                Self { spec: Arc::new(spec), types: PhantomData }
            }

            /// The name.
            #[must_use]
            pub fn name(&self) -> &StageName {
                self.spec.name()
            }

            /// The current settings.
            #[must_use]
            pub fn settings(&self) -> &StageSettings {
                self.spec.settings()
            }

            pub(crate) fn spec(&self) -> &Arc<StageSpec> {
                &self.spec
            }

            /// Changes settings, also those without a method here. Earlier clones of the stage keep theirs.
            ///
            /// ```
            /// use callboard_core::{RestartIntensity, Stage};
            ///
            /// let rarely = RestartIntensity { max_restarts: 1, ..RestartIntensity::default() };
            /// let double = Stage::each("double", |number: &i64| Ok(number * 2));
            /// let double = double.map_settings(|settings| settings.with_intensity(rarely));
            /// ```
            #[must_use]
            pub fn map_settings(self, change: impl FnOnce(StageSettings) -> StageSettings) -> Self {
                let settings = change(self.spec.settings.clone());
                self.with_settings(settings)
            }

            /// The stage with the replicas of this one, as the host of others: this stage, or its own host. Change its
            /// settings before.
            #[must_use]
            pub fn as_host(&self) -> ReplicaHost {
                ReplicaHost(Arc::clone(self.spec.host.as_ref().unwrap_or(&self.spec)))
            }

            /// Runs it by the replicas of another stage, whose worker is asynchronous: one worker for both, which
            /// [`Batch::stage`](crate::Batch::stage) tells whose items it has. A batch has items of one stage only.
            /// Each keeps its own queue length, batches, timeout, contract and metrics. The entry that is next in
            /// order decides which of them gets a free replica. The settings of replicas are those of the host.
            ///
            /// Both are a [`Stage`](crate::Stage), or both a [`StreamStage`](crate::StreamStage). The worker of the
            /// host reads all items: an item that does not fit its input type fails alone.
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// use callboard_core::{App, AsyncWorker, Batch, Failure, Stage};
            ///
            /// struct Words;
            ///
            /// impl AsyncWorker for Words {
            ///     type In = String;
            ///     type Out = String;
            ///
            ///     async fn call(&self, texts: Batch<String>) -> Vec<Result<String, Failure>> {
            ///         let is_upper = texts.stage().as_str() == "upper";
            ///         let run = |text: &String| if is_upper { text.to_uppercase() } else { text.to_lowercase() };
            ///         texts.iter().map(|text| Ok(run(text))).collect()
            ///     }
            /// }
            ///
            /// let upper = Stage::async_worker("upper", |_| Ok(Words)).replicas(2);
            /// let lower = Stage::async_worker("lower", |_| Ok(Words)).hosted_by(&upper.as_host());
            /// let node = App::new().route("/upper", upper).route("/lower", lower).start().await?;
            /// assert_eq!(node.client().call::<_, String>("/lower", "Ada".to_owned()).await?, "ada");
            /// # Ok(())
            /// # }
            /// ```
            #[must_use]
            pub fn hosted_by(self, host: &ReplicaHost) -> Self {
                let ReplicaHost(host) = host;
                let settings = self.spec.settings.clone().with_replicas_of(&host.name, &host.settings);
                let (factory, host) = (host.factory.clone(), Some(Arc::clone(host)));
                Self::from_spec(StageSpec { settings, factory, host, ..StageSpec::clone(&self.spec) })
            }

            /// The revision of the stage; see [`StageSettings::revision`].
            #[must_use]
            pub fn revision(self, revision: u64) -> Self {
                self.map_settings(|settings| settings.with_revision(revision))
            }

            /// The number of replicas. 0 counts as 1.
            #[must_use]
            pub fn replicas(self, replicas: usize) -> Self {
                self.map_settings(|settings| settings.with_replicas(at_least_one(replicas)))
            }

            /// From `min` to `max` replicas, as the load asks for; see [`Scaling`](crate::Scaling). With `min` 0 the
            /// first call starts one.
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// use callboard_core::{App, Stage};
            ///
            /// let double = Stage::each("double", |number: &i64| Ok(number * 2)).replicas_between(0, 4);
            /// let node = App::new().route("/double", double).start().await?;
            /// assert_eq!(node.describe().stages[0].replicas.len(), 0);
            /// assert_eq!(node.client().call::<i64, i64>("/double", 21).await?, 42);
            /// assert_eq!(node.describe().stages[0].replicas.len(), 1);
            /// # Ok(())
            /// # }
            /// ```
            #[must_use]
            pub fn replicas_between(self, min: usize, max: usize) -> Self {
                self.map_settings(|settings| settings.with_bounds(Scaling::between(min, max)))
            }

            /// How long the queue may take before a replica is added; see [`Scaling::queue_delay`].
            #[must_use]
            pub fn scale_delay(self, queue_delay: Duration) -> Self {
                self.map_settings(|settings| {
                    let scaling = settings.scaling().with_queue_delay(queue_delay);
                    settings.with_scaling(scaling)
                })
            }

            /// How long the last replica stays without a call; see [`Scaling::idle`].
            #[must_use]
            pub fn idle(self, idle: Duration) -> Self {
                self.map_settings(|settings| {
                    let scaling = settings.scaling().with_idle(idle);
                    settings.with_scaling(scaling)
                })
            }

            /// Always loaded, and counted among the loaded stages; see [`StageSettings::is_pinned`].
            #[must_use]
            pub fn pinned(self) -> Self {
                self.map_settings(|settings| settings.with_pinned(true))
            }

            /// The bytes that the loaded stage takes; see [`StageSettings::memory`].
            #[must_use]
            pub fn memory(self, bytes: u64) -> Self {
                self.map_settings(|settings| settings.with_memory(bytes))
            }

            /// A note about the stage for operators; see [`StageSettings::note`].
            #[must_use]
            pub fn note(self, note: &str) -> Self {
                self.map_settings(|settings| settings.with_note(note))
            }

            /// How many batches one asynchronous replica works on at once; see [`StageSettings::concurrency`]. 0 counts
            /// as 1.
            #[must_use]
            pub fn concurrency(self, batches: u32) -> Self {
                let batches = NonZeroU32::new(batches).unwrap_or(NonZeroU32::MIN);
                self.map_settings(|settings| settings.with_concurrency(batches))
            }

            /// How long a worker may take to clean up; see [`StageSettings::stop_timeout`].
            #[must_use]
            pub fn stop_timeout(self, timeout: Duration) -> Self {
                self.map_settings(|settings| settings.with_stop_timeout(timeout))
            }

            /// Hands a full batch to an asynchronous replica while another runs there; see
            /// [`StageSettings::hands_ahead`].
            #[must_use]
            pub fn hands_ahead(self) -> Self {
                self.map_settings(|settings| settings.with_hands_ahead(true))
            }

            fn change_batching(self, change: impl FnOnce(&mut crate::queue::BatchPolicy)) -> Self {
                let mut batching = self.settings().batching().clone();
                change(&mut batching);
                self.map_settings(|settings| settings.with_batching(batching))
            }

            /// How long a batch that is not full may wait for more entries; see
            /// [`BatchPolicy::max_delay`](crate::BatchPolicy::max_delay).
            #[must_use]
            pub fn max_delay(self, max_delay: Duration) -> Self {
                self.change_batching(|batching| batching.max_delay = max_delay)
            }

            /// The largest cost of one batch; see [`BatchPolicy::max_cost`](crate::BatchPolicy::max_cost). 0 counts as
            /// 1.
            #[must_use]
            pub fn max_cost(self, cost: u64) -> Self {
                let cost = cost.try_into().unwrap_or(std::num::NonZeroU64::MIN);
                self.change_batching(|batching| batching.max_cost = Some(cost))
            }

            /// How long an entry waits before it gains a priority class; see
            /// [`BatchPolicy::ageing`](crate::BatchPolicy::ageing).
            #[must_use]
            pub fn ageing(self, ageing: Duration) -> Self {
                self.change_batching(|batching| batching.ageing = ageing)
            }

            /// How many entries may wait; one more is refused with `Overloaded`. 0 counts as 1.
            #[must_use]
            pub fn queue(self, entries: usize) -> Self {
                self.map_settings(|settings| settings.with_queue(at_least_one(entries)))
            }

            /// Declares whether a call may run again after its worker died; see [`Contract`](crate::Contract). A stream
            /// may until its first output, on another node.
            #[must_use]
            pub fn contract(self, contract: crate::contract::Contract) -> Self {
                self.map_settings(|settings| settings.with_contract(contract))
            }

            /// Declares that a call has no effect but its result, so it may be run again when its worker dies; see
            /// [`Contract::Pure`](crate::Contract::Pure).
            #[must_use]
            pub fn pure(self) -> Self {
                self.contract(crate::contract::Contract::Pure)
            }

            /// Declares that running a call twice has the same effect as running it once; see
            /// [`Contract::Idempotent`](crate::Contract::Idempotent).
            #[must_use]
            pub fn idempotent(self) -> Self {
                self.contract(crate::contract::Contract::Idempotent)
            }

            /// The longest that one batch may take in user code; see [`StageSettings::timeout`].
            #[must_use]
            pub fn timeout(self, timeout: Duration) -> Self {
                self.map_settings(|settings| settings.with_timeout(timeout))
            }

            /// Pins worker threads to these CPU cores; see [`StageSettings::affinity`].
            #[must_use]
            pub fn pinned_to(self, cores: impl Into<Vec<usize>>) -> Self {
                self.map_settings(|settings| settings.with_affinity(cores))
            }

            /// Settings that each replica gets at its construction; see
            /// [`StageSettings::replica_settings`].
            #[must_use]
            pub fn replica_settings(self, settings: impl Into<Vec<callboard_codec::Map>>) -> Self {
                self.map_settings(|stage| stage.with_replica_settings(settings))
            }
        }

        impl<In, Out> Clone for $stage<In, Out> {
            /// The same stage: pipelines that use clones of it share one queue and one pool.
            fn clone(&self) -> Self {
                Self { spec: Arc::clone(&self.spec), types: PhantomData }
            }
        }

        impl<In, Out> fmt::Debug for $stage<In, Out> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.spec.fmt(f)
            }
        }
    };
}

pub(super) use common_setters;

impl<In, Out> Stage<In, Out> {
    /// The largest batch; see [`BatchPolicy::max_batch_size`](crate::BatchPolicy::max_batch_size). 0 counts as 1.
    #[must_use]
    pub fn max_batch_size(self, entries: usize) -> Self {
        self.map_settings(|settings| settings.with_max_batch_size(at_least_one(entries)))
    }

    /// How often an entry that was alone when its worker died runs again before it fails, if the contract allows it;
    /// see [`StageSettings::crash_retries`](super::StageSettings::crash_retries).
    #[must_use]
    pub fn crash_retries(self, retries: u32) -> Self {
        self.map_settings(|settings| settings.with_crash_retries(retries))
    }

    /// Keeps answers, so that an equal input does not run again. It has an effect on a [pure](Self::pure) stage.
    #[must_use]
    pub fn cache(self, cache: CacheSettings) -> Self {
        self.map_settings(|settings| settings.with_cache(cache))
    }

    /// Runs each replica on an OS thread of its own: for code that takes a millisecond or more.
    #[must_use]
    pub fn on_threads(self) -> Self {
        self.map_settings(|settings| settings.with_placement(Placement::Thread))
    }

    /// Runs each replica on the runtime: for code well under a millisecond.
    #[must_use]
    pub fn as_tasks(self) -> Self {
        self.map_settings(|settings| settings.with_placement(Placement::Task))
    }
}
