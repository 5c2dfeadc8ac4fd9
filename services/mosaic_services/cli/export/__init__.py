"""`mosaic export`: a run's data as Parquet files."""
