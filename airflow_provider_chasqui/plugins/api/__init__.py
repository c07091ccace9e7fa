"""The API behind the Chasqui page: reads are bounded, changes are guarded and written down."""
