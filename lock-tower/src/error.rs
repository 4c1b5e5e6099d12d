/// Any error, as tower boxes it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
