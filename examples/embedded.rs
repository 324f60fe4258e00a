//! `cargo run --example embedded -- examples/manifests`
//!
//! An informer over a directory of manifests, in a program without a server: it prints the number of objects of each kind, and
//! then each change until Ctrl-C.

use std::error::Error;

use informerd::{
    cache::{
        Entry, FilteringResourceEventHandler, HandlerOptions, InformerOptions, ResourceEventHandlerFuncs,
        SharedInformer, SourceHealth,
    },
    model::{IndexFunc, Object},
    source::files::{self, FilesConfig, FilesSource},
};

pub(crate) async fn run(
    directory: &str,
    print: impl Fn(String) + Clone + Send + 'static,
    end: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let health = SourceHealth::new(files::DEFAULT_RESCAN, 3 * files::DEFAULT_RESCAN);
    let source = FilesSource::new(FilesConfig::new(directory, "manifests"), health.clone());
    let options = InformerOptions { name: "manifests".to_owned(), health: Some(health), ..InformerOptions::default() };
    let informer = SharedInformer::<Object>::start(source, options);
    let by_kind = IndexFunc::custom("kind", |object: &Object| vec![object.kind().to_owned()]);
    informer.add_indexers([("kind".to_owned(), by_kind)]).await?;

    // All of these reads are of one state.
    let objects = informer.wait_for_cache_sync().await?;
    for kind in objects.list_index_func_values("kind")? {
        print(format!("{} {kind}", objects.index_keys("kind", &kind)?.len()));
    }

    let [added, updated, deleted] = [(); 3].map(|()| print.clone());
    let handler = ResourceEventHandlerFuncs::<Object>::new()
        .on_add(move |object, is_in_initial_list| {
            if !is_in_initial_list {
                added(format!("added {} {}", object.kind(), object.key()));
            }
        })
        .on_update(move |_, object| updated(format!("updated {} {}", object.kind(), object.key())))
        .on_delete(move |object, _| deleted(format!("deleted {} {}", object.kind(), object.key())));
    // A selection is cheaper; a closure can say anything.
    let handler = FilteringResourceEventHandler { filter: |object: &Entry<Object>| !object.kind().is_empty(), handler };
    let registration = informer.add_handler(handler, HandlerOptions::default())?;
    if registration.wait_for_sync().await {
        print("watching".to_owned());
    }
    end.await;
    informer.stop().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("name a directory of manifests")?;
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    #[expect(clippy::print_stdout, reason = "the output of the program")]
    run(&directory, |line| println!("{line}"), ctrl_c).await
}
