"""Record batches: headers, records, compression."""
