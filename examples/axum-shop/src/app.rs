//! The service: what can be asked of the shop, and how each kind of request is locked.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{Method, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lock_core::{LeaseOptions, LockManager, distributed_lock};
use lock_status::Status;
use lock_tower::LockLayer;
use lock_tower::key::{path_param, scoped};
use metrics::counter;
use metrics_exporter_prometheus::PrometheusHandle;
use tracing::{error, info, instrument, warn};

use crate::shop::{Good, Order, Problem, Shop};

/// The state of every handler; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) manager: LockManager,
    pub(crate) shop: Shop,
    pub(crate) metrics: PrometheusHandle,
}

impl App {
    /// The routes. Each layer stands around the methods of one route.
    pub(crate) fn service(self) -> Router {
        // As the number that the handler reads, so that `/orders/07/pay` is the same order.
        let per_order = scoped("orders", path_param::<i64>("order"));
        // A client that stalls in its upload keeps the order's key for as long as `max_hold` allows.
        let options = LeaseOptions::new().ttl(TTL).max_hold(MAX_HOLD);
        let clicks = LockLayer::http(self.manager.clone(), per_order).name("payment").options(options).try_only();
        // The attribute's keys: a sale waits for the readers of its good, and they for it.
        let per_good = scoped("goods", path_param::<Good>("good"));
        let stock = LockLayer::http(self.manager.clone(), per_good)
            .name("stock")
            .options(options)
            .shared_for([Method::GET, Method::HEAD]);
        // Open to all on this machine, so it only shows; elsewhere, put a layer around it that lets operators in.
        let locks = Status::new(self.manager.clone());
        Router::new()
            .route("/orders/{order}/pay", post(pay).route_layer(clicks))
            .route("/goods", get(goods))
            .route("/goods/{good}", get(good).put(count).route_layer(stock))
            .route("/goods/{good}/sell", post(sell))
            .route("/orders", post(order))
            .route("/metrics", get(metrics))
            .nest_service("/locks", locks)
            .with_state(self)
    }

    /// The attribute: sells one unit, to one buyer of the good at a time, at whichever instance. The span below it covers
    /// the waiting, too.
    #[distributed_lock(key = "goods:<good>", ttl = "3s", wait = "5s", manager = self.manager)]
    #[instrument(skip(self), err(level = "info", Display))]
    async fn sell(&self, good: Good) -> Result<(), Problem> {
        self.shop.sell(&Order::from([(good, 1)])).await
    }

    /// By hand: sells all goods of an order or none, when all of them are locked. The attribute's keys, so that a
    /// sale of one unit and an order exclude each other.
    #[instrument(skip(self), err(level = "info", Display))]
    async fn order(&self, order: &Order) -> Result<(), Problem> {
        if order.is_empty() {
            return Err(Problem::NothingOrdered);
        }
        let goods = order.keys().map(|good| format!("goods:{good}"));
        let lock = self.manager.lock_all(goods).label("goods of an order").ttl(TTL).wait(Duration::from_secs(5));
        lock.run(async |_| self.shop.sell(order).await).await?
    }
}

async fn sell(State(app): State<App>, Path(good): Path<Good>) -> Result<String, Problem> {
    app.sell(good).await?;
    counter!("shop_units_sold_total", "by" => "sell").increment(1);
    Ok(format!("sold one of good {good}\n"))
}

async fn order(State(app): State<App>, Json(order): Json<Order>) -> Result<String, Problem> {
    app.order(&order).await?;
    let units = order.values().map(|units| u64::from(*units)).sum();
    counter!("shop_units_sold_total", "by" => "order").increment(units);
    Ok(format!("sold {units} units\n"))
}

/// The layer: takes the payment of an order; no second click gets here while the first is being served.
#[instrument(skip(app), err(level = "info", Display))]
async fn pay(State(app): State<App>, Path(order): Path<i64>) -> Result<String, Problem> {
    if app.shop.pay(order).await? {
        info!("paid");
        Ok(format!("order {order} is paid\n"))
    } else {
        Ok(format!("order {order} was paid before\n"))
    }
}

async fn goods(State(app): State<App>) -> Result<String, Problem> {
    let stock = app.shop.stock().await?;
    Ok(stock.iter().map(|row| format!("good {}: {} left, version {}\n", row.good, row.left, row.version)).collect())
}

/// The layer: any number of readers of the good get here at the same time, and none while it is sold or counted.
async fn good(State(app): State<App>, Path(good): Path<Good>) -> Result<String, Problem> {
    let row = app.shop.good(good).await?;
    Ok(format!("good {good}: {} left, version {}\n", row.left, row.version))
}

/// The layer: a request to PUT is alone with the good.
#[instrument(skip(app), err(level = "info", Display))]
async fn count(State(app): State<App>, Path(good): Path<Good>, Json(units): Json<u32>) -> Result<String, Problem> {
    app.shop.count(good, units).await?;
    Ok(format!("good {good}: {units} left\n"))
}

async fn metrics(State(app): State<App>) -> String {
    app.metrics.render()
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        counter!("shop_refusals_total", "why" => self.name()).increment(1);
        let status = match &self {
            Self::NothingOrdered => StatusCode::BAD_REQUEST,
            Self::NoSuchGood => StatusCode::NOT_FOUND,
            Self::SoldOut => StatusCode::CONFLICT,
            Self::Overtaken => {
                warn!("a row was written by somebody without the lock");
                StatusCode::SERVICE_UNAVAILABLE
            }
            // As the layer answers: without the key and without the address of Redis.
            Self::Lock(error) => return error.clone().into_response(),
            Self::Database(_) => {
                error!("{self}");
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        let body = format!("{self}\n");
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return (status, [(RETRY_AFTER, "1")], body).into_response();
        }
        (status, body).into_response()
    }
}

/// For how long an instance that died keeps others out.
const TTL: Duration = Duration::from_secs(3);

/// For how long a payment may keep the key of its order, and a reader or a count the key of its good.
const MAX_HOLD: Duration = Duration::from_secs(30);
