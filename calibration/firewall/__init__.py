"""Is a row of one data source or role also in another: exactly, nearly, or through its group? One file a kind of content."""
