"""Callbacks for frameworks. Each module imports its framework, which this package does not depend on."""
