"""Model Explorer opens OpenVINO models: ``model-explorer MODEL.xml --extensions=hsdag.integrations.model_explorer``."""
