//! Builder of a server that a program embeds: sources of its own, and layers around every call.

use std::{collections::BTreeMap, sync::Arc};

use http::Response;
use tower::{BoxError, Layer, Service};

use super::{connector::OwnSource, error::AppError, reload::ConfigSource};
use crate::{
    cache::ListerWatcher,
    config::{Config, ResourceConfig, ResourceOptions, SourceConfig},
    grpc::{CallRequest, CallService, ResponseBody, Routes},
    model::{Indexers, NamedViews},
};

/// Server that has not started yet, from [`App::builder`](super::App::builder).
#[must_use = "the server begins with `start`"]
pub struct AppBuilder {
    pub(super) config: Config,
    pub(super) own: BTreeMap<String, OwnSource>,
    /// Layers, the outermost first.
    pub(super) layers: Vec<Wrap>,
    /// Origin of the configuration, if it is reloaded.
    pub(super) source: Option<ConfigSource>,
    /// First resource that cannot be served.
    error: Option<AppError>,
}

/// Options of a resource that a program serves from a source of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeOptions {
    /// Indexes besides `namespace`.
    pub indexers: Arc<Indexers>,
    /// Views that requests may name, beside or in place of those that every server has.
    pub views: Arc<NamedViews>,
    /// Options as in the configuration file; `ttl` is only for the source `stream`, and `verify_interval` for those of
    /// a configuration file.
    pub resource: ResourceOptions,
}

/// Call that wraps the services in a layer.
pub(super) type Wrap = Box<dyn FnOnce(Routes) -> Routes + Send>;

// === impl AppBuilder ===

impl AppBuilder {
    pub(super) fn new(config: Config) -> Self {
        Self { config, own: BTreeMap::new(), layers: Vec::new(), source: None, error: None }
    }

    pub(super) fn reloading(self, source: ConfigSource) -> Self {
        Self { source: Some(source), ..self }
    }

    /// Adds a resource that this source feeds. A name that is not valid, or that another resource has, fails the start, and so do
    /// a `ttl` and a `verify_interval`.
    pub fn serve(mut self, name: &str, options: ServeOptions, source: impl ListerWatcher) -> Self {
        let ServeOptions { indexers, views, resource: options } = options;
        let key = options.ttl.map(|_| "`ttl` is only for `stream` sources; remove it");
        let verify =
            "`verify_interval` is not for a source of the program, of which there is no second instance; remove it";
        let problem = key.or(options.verify_interval.map(|_| verify));
        let resource = ResourceConfig { name: name.to_owned(), source: SourceConfig::Own, indexers, views, options };
        let is_taken = self.config.resources.contains_key(name);
        let checked = ResourceConfig::check_name(name).map_err(|error| error.to_string());
        let checked = checked.and_then(|()| match (is_taken, problem) {
            (true, _) => Err("another resource has this name".to_owned()),
            (_, Some(problem)) => Err(problem.to_owned()),
            (false, None) => Ok(()),
        });
        match checked {
            Ok(()) => {
                self.config.resources.insert(name.to_owned(), resource);
                self.own.insert(name.to_owned(), OwnSource::new(source));
            }
            Err(problem) => {
                self.error.get_or_insert(AppError::of_resource(name, problem));
            }
        }
        self
    }

    /// Adds a layer around every call, of whatever service: Watch, List, the others of informerd, health and reflection. The
    /// layer added first receives a request first.
    ///
    /// - An error of a layer becomes the status of the call; a [`tonic::Status`] is passed on as it is.
    /// - Requests that are not gRPC are refused before the layers. A call that a layer refuses is counted as every other, and the
    ///   deadline of the client ends a layer that waits.
    /// - The layer sees the headers of the response when a stream begins, not the messages.
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<CallService> + Send + 'static,
        L::Service: Service<CallRequest, Response = Response<ResponseBody>, Error: Into<BoxError>, Future: Send>,
        L::Service: Clone + Send + Sync + 'static,
    {
        self.layers.push(Box::new(|routes| routes.layered(layer)));
        self
    }

    /// Checks that every resource has a name and a source.
    pub(super) fn check(&mut self) -> Result<(), AppError> {
        let Self { config, own, error, .. } = self;
        let lacks_source =
            |resource: &&ResourceConfig| resource.source == SourceConfig::Own && !own.contains_key(&resource.name);
        let missing =
            config.resources.values().find(lacks_source).map(|resource| {
                AppError::of_resource(&resource.name, "it has no source; pass one to AppBuilder::serve")
            });
        error.take().or(missing).map_or(Ok(()), Err)
    }
}

debug_fields!(AppBuilder, this => { config: this.config, layers: this.layers.len() });
