"""The jobs of mqpipeline."""
